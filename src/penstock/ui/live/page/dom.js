// Numbers and times as people read them, and the note at the pointer.

import { make } from "./elements.js";

/** A number with thousands grouped. */
export function whole(value) {
  return Number(value).toLocaleString("en");
}

/** A value as the rest of Penstock writes it: a share in percent, else three to four digits. */
export function written(value, metric = {}) {
  if (metric.share) return `${(value * 100).toFixed(1)}%`.replace("-", "−");
  const size = Math.abs(value);
  const text = value === 0 ? "0"
    : Number.isInteger(value) && size < 1e7 ? whole(value)
    : size >= 1e7 || size < 1e-4 ? value.toExponential(2).replace("e+", "e")
    : size >= 1000 ? whole(Math.round(value))
    : String(Number(value.toPrecision(size >= 1 ? 4 : 3)));
  return `${text.replaceAll("-", "−")}${metric.unit ? ` ${metric.unit}` : ""}`;
}

/** How long ago, in words. */
export function ago(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** What may be wider than the screen, in a box that scrolls by keyboard too; the label says what it holds. */
export function scrolling(label, ...children) {
  return make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, children);
}

/** A note at the pointer, or none. */
export function tip(lines, x = 0, y = 0) {
  const box = document.getElementById("tip");
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map((line) => make("div", {}, line)));
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${Math.max(4, Math.min(y - box.offsetHeight - 8, innerHeight - box.offsetHeight - 4))}px`;
}
