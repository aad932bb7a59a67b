// Elements by hand. Text only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = ["checked", "value"]; // what somebody may have changed since, so the attribute alone would not do

export const find = (selector, within = document) => within.querySelector(selector);
export const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// make("button", {class: "quiet", onclick: f}, "Text", node, [nodes]…): names that begin with "on" are listeners; true sets an
// attribute without a value; what is false, null or undefined is left out, also among the children.
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

// The same for drawings.
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

const there = (value) => value !== false && value !== null && value !== undefined;

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes).filter(([, given]) => there(given))) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (PROPERTIES.includes(name)) made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter(there));
  return made;
}
