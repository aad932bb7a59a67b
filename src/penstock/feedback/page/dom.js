// What only these pages do with their elements: texts, banners, dialogs, keys, and the time that one looks.

import { all, find, make } from "./elements.js";

// What only this page does with its elements. Texts go in as text; the one way for HTML is `prose`, for what the server has cleaned.


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

// Single keys that do something, wherever the focus is, except while one types or a dialog is open.

const TYPING = "textarea, select, input:not([type=radio], [type=checkbox]), [contenteditable]";
const QUIET = "[data-keys=off]"; // parts in which one is about to type
const PRESSED = "button, a, summary, input[type=checkbox]"; // Enter is theirs

export const KEYS = [
  ["1 – 7", "pair: from “A much better” (1) through a tie (4) to “B much better” (7)"],
  ["0", "pair: tie"],
  ["b", "pair: both bad"],
  ["1 – 9", "ranking, rating: fill in the current field and move to the next"],
  ["↑ ↓ ← →", "ranking, rating: change the focused value"],
  ["Enter", "send an answer with several parts"],
  ["d", "mark the differences, where the answers are similar"],
  ["r", "raw text, exactly as it was written"],
  ["e", "edit an answer"],
  ["c", "critique one answer, or all of them"],
  ["s", "skip"],
  ["f", "flag, with a reason"],
  ["u", "undo"],
  ["g", "guideline"],
  ["?", "show these shortcuts"],
];

// `act(key, event)` gives true if it took the key; `on()` tells whether single keys are wanted at all.
export function listen(act, on) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat) return;
    if (document.querySelector("dialog[open]")) return;
    const target = event.target instanceof Element ? event.target : document.body;
    if (target.closest(QUIET)) return;
    if (event.key === "Enter" ? target.closest(`textarea, ${PRESSED}`) : target.closest(TYPING)) return;
    if (event.key !== "Enter" && event.key !== "Escape" && !on()) return;
    if (act(event.key, event)) event.preventDefault();
  });
}

// Seconds that a page has been looked at: while it is hidden, they stop.

export class Stopwatch {
  constructor() {
    this.start();
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.since = performance.now();
      else {
        this.before = this.seconds;
        this.since = null;
      }
    });
  }

  start(before = 0) {
    this.before = before;
    this.since = document.visibilityState === "visible" ? performance.now() : null;
  }

  get seconds() {
    const now = this.since === null ? 0 : (performance.now() - this.since) / 1000;
    return Math.round((this.before + now) * 1000) / 1000;
  }
}
