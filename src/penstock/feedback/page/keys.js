// Single keys that do something, wherever the focus is, except while one types or a dialog is open.

const TYPING = "textarea, select, input:not([type=radio], [type=checkbox]), [contenteditable]";
const QUIET = "[data-keys=off]"; // parts in which one is about to type
const PRESSED = "button, a, summary, input[type=checkbox]"; // Enter is theirs

export const KEYS = [
  ["1 – 7", "pair: from A much better (1) over a tie (4) to B much better (7)"],
  ["0", "pair: tie"],
  ["b", "pair: both bad"],
  ["1 – 9", "ranking, rating: a value for the marked field, then the next one"],
  ["↑ ↓ ← →", "ranking, rating: change the value that has the focus"],
  ["Enter", "send an answer that has several parts"],
  ["d", "differences between the answers"],
  ["e", "edit an answer"],
  ["c", "critique an answer, or the whole"],
  ["s", "skip"],
  ["f", "flag, with a reason"],
  ["u", "undo"],
  ["g", "guideline"],
  ["?", "these keys"],
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
