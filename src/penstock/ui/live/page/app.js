// Which page is shown, and its refreshing: one view at a time, each with `element`, `refresh()` and perhaps `keys(event)`.

import { takeToken } from "./api.js";
import { compareView } from "./compare.js";
import { make } from "./elements.js";
import { overviewView } from "./overview.js";
import { Refused, Unreachable } from "./request.js";
import { runView } from "./run.js";

const MOVING_MS = 2000;
const RESTING_MS = 10000;
const READING_MS = 60;
const main = document.getElementById("main");
const status = document.getElementById("status");
let view = null;
let timer = 0;
let failures = 0;

/** The address after "#": path parts and query. */
function address() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

function viewOf({ parts, query }) {
  if (parts[0] === "run" && parts[1]) return runView(parts[1], parts[2] ?? "curves", query);
  if (parts[0] === "compare") return compareView(query);
  return overviewView();
}

/** Another page: the heading gets the focus, so that a reader of screens hears where they are. */
function show() {
  const where = address();
  if (view?.stays?.(where)) return;
  view?.close?.();
  view = viewOf(where);
  main.replaceChildren(view.element);
  document.title = `${view.title} · Penstock`;
  const page = where.parts[0] === "compare" ? "compare" : "runs";
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refresh();
}

/** Ask again and again: often while something moves, seldom when it rests, not at all while nobody looks. */
async function refresh() {
  clearTimeout(timer);
  const mine = view;
  let wait = MOVING_MS;
  try {
    const state = await mine.refresh();
    failures = 0;
    wait = state === "reading" ? READING_MS : state === "rests" ? RESTING_MS : MOVING_MS;
    say(state === "reading" ? "reading the log…" : state === "rests" ? "up to date" : "live");
  } catch (error) {
    failures += 1;
    wait = Math.min(30000, MOVING_MS * failures);
    if (!(error instanceof Refused || error instanceof Unreachable)) console.error(error);
    say(error.message, true);
    if (error.status === 404 && mine === view && !mine.ready) main.replaceChildren(make("p", { class: "empty" }, error.message));
  }
  if (mine === view && !document.hidden) timer = setTimeout(refresh, wait);
}

function say(text, trouble = false) {
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("trouble", trouble);
}

function keys(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea, svg")) return;
  view?.keys?.(event);
}

takeToken();
document.getElementById("skip").addEventListener("click", () => main.focus());
addEventListener("hashchange", () => { takeToken(); show(); main.focus(); });
addEventListener("keydown", keys);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
show();
