// What every page must be, whatever it shows.
() => {
  const wrong = [];
  const shown = (node) => node.getClientRects().length > 0;
  const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);
  const tell = (node, what) => wrong.push(`${what}: ${node.outerHTML.slice(0, 120)}`);
  const textOf = (id) => document.getElementById(id)?.textContent ?? "";
  const named = (node) => {
    const by = (node.getAttribute("aria-labelledby") ?? "").split(/\s+/).filter(Boolean).map(textOf);
    const labels = [...(node.labels ?? [])].map((label) => label.textContent);
    const own = [node.getAttribute("aria-label") ?? "", node.getAttribute("alt") ?? "", node.textContent];
    return [...by, ...labels, ...own].join("").trim();
  };

  const controls =
    "a, button, input, select, textarea, summary, [tabindex='0'], [role=region], [role=group], svg[role=img]";
  for (const node of all(controls)) if (!named(node)) tell(node, "no name");
  for (const node of all("table")) if (!node.caption?.textContent.trim()) tell(node, "no caption");
  for (const node of all("table th")) if (!node.scope) tell(node, "no scope");
  for (const node of all("img")) if (!node.hasAttribute("alt")) tell(node, "no alt");

  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`id twice: ${id}`);
  for (const node of all("[aria-labelledby], [aria-describedby]")) {
    const told = `${node.getAttribute("aria-labelledby") ?? ""} ${node.getAttribute("aria-describedby") ?? ""}`;
    for (const id of told.split(/\s+/).filter(Boolean)) if (!ids.includes(id)) tell(node, `no ${id}`);
  }

  const headings = [...document.querySelectorAll("h1, h2, h3, h4")].filter((node) => node.checkVisibility());
  const levels = headings.map((node) => Number(node.tagName[1]));
  levels.forEach((level, index) => level > (levels[index - 1] ?? 0) + 1 && tell(headings[index], "skips a level"));
  if (levels.filter((level) => level === 1).length !== 1) wrong.push("not one h1");
  if (all("main").length !== 1) wrong.push("not one main");
  if (!document.documentElement.lang) wrong.push("no lang");
  if (!document.title) wrong.push("no title");
  return wrong;
};
