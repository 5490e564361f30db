// Light, dark, or as the system says. Loaded before the first paint, so that a page never flashes in the wrong one.
(() => {
  const KEY = "commonscale-theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };

  // A browser may forbid storage; the choice then lasts as long as the page.
  const remembered = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const remember = (theme) => {
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      /* see above */
    }
  };

  let theme = NEXT[remembered()] ? remembered() : "auto";
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      button.textContent = `Theme: ${theme}`;
      button.setAttribute("aria-label", `Theme: ${theme}. Change to ${NEXT[theme]}.`);
    }
  };

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      button.addEventListener("click", () => {
        theme = NEXT[theme];
        remember(theme);
        apply();
      });
    }
  });
})();
