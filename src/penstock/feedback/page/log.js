// The log, a page of it at a time, with where every response came from; and taking an event back.

import { ask, say } from "./dom.js";
import { find, make } from "./elements.js";
import { call } from "./http.js";
import { table } from "./table.js";

const PAGE = 25;
const COLUMNS = [
  ["#", "n"],
  ["Time (UTC)", ""],
  ["What", ""],
  ["By", ""],
  ["Said", ""],
  ["Task and lineage", ""],
  ["Actions", "acts"],
];
const WITHDRAWN = new Set(["undo", "retract"]);

export class Log {
  // `retract(event, reason)` takes an event back; `guarded(work)` tells what the server refuses.
  constructor(guarded, retract) {
    this.guarded = guarded;
    this.retract = retract;
    this.after = null; // the page shows events after this one; null: the newest
    find("#older").onclick = () => this.go(Math.max(0, this.from - PAGE));
    find("#newer").onclick = () => this.go(this.from + PAGE >= this.length - PAGE ? null : this.from + PAGE);
  }

  go(after) {
    this.after = after;
    return this.guarded(() => this.load());
  }

  async load() {
    let found = await call(`/api/admin/events?after=${this.after ?? 0}&limit=${this.after === null ? 1 : PAGE}`);
    if (this.after === null) found = await call(`/api/admin/events?after=${Math.max(0, found.length - PAGE)}&limit=${PAGE}`);
    this.length = found.length;
    this.from = this.after ?? Math.max(0, found.length - PAGE);
    const { events } = found,
      gone = new Set(events.map((event) => event.target).filter(Boolean));
    find("#log-range").textContent = events.length
      ? `${events[0].sequence} to ${events.at(-1).sequence} of ${found.length}`
      : "empty";
    find("#older").disabled = this.from === 0;
    find("#newer").disabled = this.from + events.length >= found.length;
    find("#log").replaceChildren(
      events.length
        ? table(
            "Events",
            COLUMNS,
            events.reverse().map((event) => this.row(event, gone)),
          )
        : make("p", { class: "note" }, "Nothing has happened yet."),
    );
  }

  row(event, gone) {
    const kind = make("span", { class: `kind ${event.kind}` }, event.kind);
    const back =
      WITHDRAWN.has(event.kind) || gone.has(event.sequence)
        ? ""
        : make(
            "button",
            { type: "button", "aria-label": `Retract event ${event.sequence}`, onclick: () => this.take(event) },
            "Retract",
          );
    const time = new Date(event.time * 1000).toISOString().slice(0, 19).replace("T", " ");
    return [
      "",
      String(event.sequence),
      time,
      kind,
      event.annotator,
      make("span", { class: gone.has(event.sequence) ? "gone" : null }, said(event)),
      lineage(event),
      back,
    ];
  }

  async take(event) {
    const reason = find("#retract-reason");
    reason.value = "";
    if ((await ask(find("#retract-dialog"))) !== "retract") return;
    await this.guarded(async () => {
      await this.retract(event.sequence, reason.value.trim());
      await this.load();
      say(`Event ${event.sequence} retracted`);
    });
  }
}

// A body in few words; it speaks of responses, which are counted from 1 here.
function said({ kind, body, target }) {
  if (kind === "vote")
    return body.both_bad
      ? "both bad"
      : body.preference === 0
        ? "tie"
        : `${body.preference > 0 ? "first" : "second"} by ${Math.abs(body.preference)}`;
  if (kind === "ranking") return `ranks ${body.ranks.join(", ")}`;
  if (kind === "rating")
    return Object.entries(body.scores)
      .map(([axis, values]) => `${axis} ${values.join(", ")}`)
      .join("; ");
  if (WITHDRAWN.has(kind)) return [`event ${target}`, body.reason].filter(Boolean).join(": ");
  const about = body.response === null || body.response === undefined ? "" : `response ${body.response + 1}: `;
  const text = body.text ?? body.reason ?? "";
  return about + (text.length > 160 ? `${text.slice(0, 160)}…` : text);
}

function lineage({ task, latency, guideline }) {
  const facts = [
    ["task", task.id],
    ["chosen", task.strategy],
    ["origin", task.origin],
    ["key", task.key],
    ["guideline", guideline],
    ["looked at", latency >= 0 ? `${latency.toFixed(1)} s` : ""],
    ["prompt", task.prompt],
  ];
  task.responses.forEach((response, i) => {
    const from = [
      response.run && `run ${response.run}`,
      response.stage,
      response.version >= 0 && `version ${response.version}`,
      response.source,
    ]
      .filter(Boolean)
      .join(", ");
    facts.push([`response ${i + 1}`, `${from || "of unknown origin"}\n${response.text}`]);
  });
  const list = make(
    "dl",
    {},
    ...facts.filter(([, text]) => text).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]),
  );
  return make("details", {}, make("summary", {}, `${task.form}, ${task.purpose}`), list);
}
