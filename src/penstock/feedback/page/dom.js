// What only this page does with its elements. Texts go in as text; the one way for HTML is `prose`, for what the server has cleaned.

import { all, find, make } from "./elements.js";

// Put HTML that the server has sanitised into an element.
export function prose(element, html) {
  element.innerHTML = html;
  for (const code of all("pre", element)) {
    // what scrolls must be reachable by keyboard
    code.tabIndex = 0;
    code.setAttribute("role", "group");
    code.setAttribute("aria-label", "Code");
  }
  return element;
}

export const key = (name) => make("kbd", {}, name);

// Tell a screen reader; the same words again are read again.
export function say(text) {
  const said = document.getElementById("said");
  said.textContent = "";
  setTimeout(() => {
    said.textContent = text;
  }, 60);
}

// A banner of the page: its first span gets the text; no text hides it.
export function banner(id, text, act) {
  const box = document.getElementById(id);
  box.hidden = !text;
  if (box.firstElementChild.textContent !== (text ?? "")) box.firstElementChild.textContent = text ?? "";
  box.lastElementChild.onclick =
    act ??
    (() => {
      box.hidden = true;
    });
}

// Show a dialog and give the value of the button that closed it; Escape gives "". It has ended when this resolves: the event
// "close" comes later, when the same dialog may be open again, and then it is not meant.
export function ask(dialog) {
  return new Promise((resolve) => {
    const over = new AbortController();
    const end = (event, value) => {
      event.preventDefault();
      over.abort();
      dialog.close();
      resolve(value);
    };
    const hear = (target, name, listener) => target.addEventListener(name, listener, { signal: over.signal });
    hear(find("form", dialog), "submit", (event) => end(event, event.submitter?.value ?? ""));
    hear(dialog, "cancel", (event) => end(event, ""));
    hear(dialog, "close", (event) => dialog.open || end(event, ""));
    dialog.showModal();
  });
}

// A random name for one act, in hexadecimal.
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
