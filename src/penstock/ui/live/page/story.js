// What happened in a run, and what it is: sentinels, events, summary, spec.

import { get, runPath } from "./api.js";
import { el, whole } from "./dom.js";

function table(caption, names, rows) {
  return el("div", { class: "scroll" }, el("table", { class: "timeline" }, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col", class: name === "step" || name === "tripped at" ? "n" : null }, name)))), el("tbody", {}, rows)));
}

function alarmRow(one) {
  return el("tr", { class: one.fatal ? "failed" : null }, el("td", {}, one.stage), el("td", { class: "what" }, one.name), el("td", {}, one.severity),
    el("td", { class: "n" }, whole(one.step)), el("td", {}, one.until), el("td", { class: "fields" }, one.message));
}

function eventRow(one) {
  return el("tr", { class: one.trouble ? "failed" : null }, el("td", { class: "when" }, one.after), el("td", {}, one.stage),
    el("td", { class: "n" }, one.step), el("td", { class: "what" }, one.what),
    el("td", { class: "fields" }, one.fields.map(([name, value]) => el("span", {}, el("i", {}, name), ` ${value}`))));
}

export function eventsPane() {
  const element = el("div");
  let version = "";
  return {
    element,
    async refresh(head) {
      if (head.version === version) return;
      version = head.version;
      element.replaceChildren(
        head.alarms.length ? table("Sentinels", ["stage", "sentinel", "", "tripped at", "", "what it saw"], head.alarms.map(alarmRow))
          : el("p", { class: "empty" }, "No sentinel has tripped."),
        table("Events", ["after", "stage", "step", "event", ""], head.events.map(eventRow)),
        head.events_left_out ? el("p", { class: "note" }, `${whole(head.events_left_out)} more are in events.jsonl.`) : "",
        head.summary.length ? el("details", {}, el("summary", {}, "Summary"), el("dl", { class: "pairs" },
          head.summary.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))) : "");
    },
  };
}

export function specPane(id) {
  const text = el("pre", { tabindex: "0", "aria-label": "the run as a value" });
  return {
    element: el("div", {}, text),
    async refresh() {
      if (!text.textContent) text.textContent = (await get(runPath(id, "/spec"))).spec;
    },
  };
}
