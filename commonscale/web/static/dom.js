// Elements, made and changed in place. Words from peers only ever become text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** A new element with attributes and children (elements or text). */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) attr(node, name, value);
  node.append(...children);
  return node;
}

/** A new SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) attr(node, name, value);
  node.append(...children);
  return node;
}

/** Set the text, only if it differs: a selection in it survives, a screen reader is not woken. */
export function say(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

/** Set an attribute, only if it differs; null and false take it away. */
export function attr(node, name, value) {
  if (value === null || value === false || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

const nodesOf = new WeakMap();

/**
 * Make the children of a parent follow a list. Each item keeps its node as long as its key is there, and nodes that are
 * in their place are not touched, so focus, scroll position and selection stay.
 */
export function keyed(parent, items, keyOf, make, update) {
  const before = nodesOf.get(parent) ?? new Map();
  const wanted = new Map(items.map((item) => [keyOf(item), item]));
  for (const [key, node] of before) if (!wanted.has(key)) node.remove();
  const after = new Map();
  let place = parent.firstElementChild;
  for (const [key, item] of wanted) {
    const node = before.get(key) ?? make(item);
    after.set(key, node);
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  nodesOf.set(parent, after);
}

/** The elements marked with data-part inside a node, by that name. */
export function parts(node) {
  return Object.fromEntries([...node.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
}
