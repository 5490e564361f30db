// A line that breaks while the page loads would leave half a page, without a script to tell: load it again, a few times.
(() => {
  const KEY = "commonscale-reloads";
  const MOST = 5;

  addEventListener(
    "error",
    (event) => {
      if (!["SCRIPT", "LINK"].includes(event.target.tagName)) return;
      const reloads = Number(sessionStorage.getItem(KEY)) + 1;
      sessionStorage.setItem(KEY, reloads);
      if (reloads <= MOST) setTimeout(() => location.reload(), 1000 * reloads);
    },
    true,
  );
  addEventListener("load", () => document.querySelector("main > :not(noscript)") && sessionStorage.removeItem(KEY));
})();
