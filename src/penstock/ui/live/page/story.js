// What happened in a run, and what it is: sentinels, events, summary, spec.

import { get, runPath } from "./api.js";
import { scrolling, whole } from "./dom.js";
import { make } from "./elements.js";

function table(caption, names, rows) {
  return scrolling(caption, make("table", { class: "timeline" }, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col", class: name === "step" || name === "tripped at" ? "n" : null }, name)))), make("tbody", {}, rows)));
}

function alarmRow(one) {
  return make("tr", { class: one.fatal ? "failed" : null }, make("td", {}, one.stage), make("td", { class: "what" }, one.name), make("td", {}, one.severity),
    make("td", { class: "n" }, whole(one.step)), make("td", {}, one.until), make("td", { class: "fields" }, one.message));
}

function eventRow(one) {
  return make("tr", { class: one.trouble ? "failed" : null }, make("td", { class: "when" }, one.after), make("td", {}, one.stage),
    make("td", { class: "n" }, one.step), make("td", { class: "what" }, one.what),
    make("td", { class: "fields" }, one.fields.map(([name, value]) => make("span", {}, make("i", {}, name), ` ${value}`))));
}

export function eventsPane() {
  const element = make("div");
  let version = "";
  return {
    element,
    async refresh(head) {
      if (head.version === version) return;
      version = head.version;
      element.replaceChildren(
        head.alarms.length ? table("Sentinels", ["stage", "sentinel", "severity", "tripped at", "until", "reason"], head.alarms.map(alarmRow))
          : make("p", { class: "empty" }, "No sentinel has tripped."),
        table("Events", ["after", "stage", "step", "event", ""], head.events.map(eventRow)),
        head.events_left_out ? make("p", { class: "note" }, `${whole(head.events_left_out)} more are in events.jsonl.`) : "",
        head.summary.length ? make("details", {}, make("summary", {}, "Summary"), make("dl", { class: "pairs" },
          head.summary.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))) : "");
    },
  };
}

export function specPane(id) {
  const text = make("pre", { tabindex: "0", "aria-label": "the spec of the run" });
  return {
    element: make("div", {}, text),
    async refresh() {
      if (!text.textContent) text.textContent = (await get(runPath(id, "/spec"))).spec;
    },
  };
}
