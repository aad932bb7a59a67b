// The log, a page of it at a time, with where every response came from; and taking an event back.

import { ask, say } from "./dom.js";
import { find, make } from "./elements.js";
import { call } from "./service.js";
import { table } from "./tables.js";

const PAGE = 25; // events that are shown at once
const CHUNK = 500; // events that are asked for at once while a filter is set
const MOST_CHUNKS = 20; // of them before the search stops and says how far it came
const COLUMNS = [
  ["#", ""],
  ["Time (UTC)", ""],
  ["Event", ""],
  ["By", ""],
  ["Content", ""],
  ["Task and lineage", ""],
];
const WITHDRAWN = new Set(["undo", "retract"]);
export const PURPOSES = {
  ask: "Questions",
  gold: "Gold questions",
  repeat: "Repeated questions",
  anchor: "Anchor questions",
  adjudication: "Disputes",
};
const KINDS = {
  vote: "Vote",
  correction: "Correction",
  ranking: "Ranking",
  rating: "Rating",
  skip: "Skipped",
  flag: "Flagged",
  edit: "Edit",
  critique: "Critique",
  undo: "Undone",
  retract: "Retracted",
  exclude: "Excluded",
  include: "Included again",
  promote: "Made gold",
  demote: "No longer gold",
  removed: "Deleted",
};

export class Log {
  // `retract(event, reason, kind)` takes an event back; `guarded(work)` tells what the server refuses.
  constructor(guarded, retract) {
    this.guarded = guarded;
    this.retract = retract;
    this.pages = [null]; // up to which event each page goes that was looked at; null: the newest
    this.gone = new Set(); // events that others have taken back
    this.chosen = new Map(); // events by their number
    find("#log-kind").append(...Object.entries(KINDS).map(([kind, text]) => make("option", { value: kind }, text)));
    find("#log-filter").onsubmit = (event) => event.preventDefault();
    for (const field of ["#log-kind", "#log-by", "#log-text"]) find(field).onchange = () => this.newest();
    find("#older").onclick = () => this.turn(() => this.pages.push(this.rest));
    find("#newer").onclick = () => this.turn(() => this.pages.pop());
    find("#retract").onclick = () => this.take();
    find("#make-gold").onclick = () => this.promote();
  }

  newest() {
    return this.turn(() => (this.pages = [null]));
  }

  turn(how) {
    how();
    return this.guarded(() => this.load());
  }

  // Whether an event passes the filter.
  passes(event) {
    const [kind, by, text] = ["#log-kind", "#log-by", "#log-text"].map((field) => find(field).value.trim().toLowerCase());
    return (
      (!kind || event.kind === kind) &&
      (!by || event.annotator.toLowerCase().includes(by)) &&
      (!text || JSON.stringify([event.sequence, event.body, event.task]).toLowerCase().includes(text))
    );
  }

  // A page of events, the newest first: the log is read backwards until it is full.
  async load() {
    const filtered = document.querySelector("#project") !== null || ["#log-kind", "#log-by", "#log-text"].some((field) => find(field).value.trim());
    let end = this.pages.at(-1) ?? (await call("/api/admin/events?after=0&limit=1")).length;
    const events = [];
    for (let chunk = 0; events.length < PAGE && end > 0 && chunk < MOST_CHUNKS; chunk += 1) {
      const from = Math.max(0, end - (filtered ? CHUNK : PAGE));
      const found = (await call(`/api/admin/events?after=${from}&limit=${end - from}`)).events.reverse();
      for (const event of found) if (event.target) this.gone.add(event.target);
      const wanted = found.filter((event) => this.passes(event)).slice(0, PAGE - events.length);
      events.push(...wanted);
      end = events.length === PAGE ? events.at(-1).sequence - 1 : from;
    }
    this.rest = end;
    this.chosen.clear();
    find("#older").disabled = end === 0;
    find("#newer").disabled = this.pages.length === 1;
    find("#log-range").textContent = !filtered ? "" : end ? `searched back to event ${end + 1}` : "searched from the beginning";
    const empty = filtered ? "No event matches this filter." : "No events yet.";
    find("#log").replaceChildren(events.length ? table("Events", COLUMNS, events.map((event) => this.row(event))) : make("p", { class: "note" }, empty));
    this.count();
  }

  count() {
    find("#retract").disabled = !this.chosen.size;
    find("#make-gold").disabled = this.chosen.size !== 1 || ![...this.chosen.values()][0].task;
    find("#retract").textContent = this.chosen.size ? `Retract ${this.chosen.size} selected…` : "Retract selected…";
  }

  row(event) {
    const { sequence, kind } = event,
      gone = this.gone.has(sequence);
    const choose = ({ target }) => {
      if (target.checked) this.chosen.set(sequence, event);
      else this.chosen.delete(sequence);
      this.count();
    };
    const box = make("input", { type: "checkbox", "aria-label": `Select event ${sequence}`, onchange: choose });
    const fixed = WITHDRAWN.has(kind) || gone || !(event.task || kind === "exclude");
    return [
      "",
      fixed ? String(sequence) : make("label", { class: "check" }, box, String(sequence)),
      new Date(event.time * 1000).toISOString().slice(0, 19).replace("T", " "),
      make("span", { class: `kind is-${kind}` }, KINDS[kind] ?? kind),
      event.annotator,
      make("span", { class: gone ? "gone" : null }, said(event)),
      lineage(event),
    ];
  }

  // Make a gold question of the chosen event's task, with an answer that the administrator knows.
  async promote() {
    const [{ task }] = this.chosen.values();
    const [answer, reason] = ["#gold-answer", "#gold-reason"].map((field) => find(field));
    answer.value = reason.value = "";
    find("#gold-hint").textContent = {
      pair: "1 if the first response is better, 2 if the second is, or tie.",
      ranking: "The ranks of the responses in order, such as 2, 1, 3; 1 is best.",
    }[task.form] ?? "The right rating, a number.";
    find("#gold-task").textContent = [task.prompt, ...task.responses.map(({ text }, i) => `${i + 1}: ${text}`)].join("\n\n");
    if ((await ask(find("#gold-dialog"))) !== "promote") return;
    const given = answer.value.trim();
    const parsed = task.form === "ranking" ? given.split(/[\s,]+/).map(Number) : /^-?[\d.]+$/.test(given) ? Number(given) : given;
    await this.guarded(async () => {
      await call("/api/admin/gold", { task: task.id, answer: parsed, reason: reason.value.trim() });
      say("Made gold");
      document.dispatchEvent(new Event("gold"));
    });
    await this.newest();
  }

  async take() {
    const events = [...this.chosen.keys()],
      kinds = new Map([...this.chosen].map(([event, { kind }]) => [event, kind])),
      reason = find("#retract-reason");
    reason.value = "";
    find("#retract-title").textContent = events.length === 1 ? `Retract event ${events[0]}` : `Retract ${events.length} events`;
    if ((await ask(find("#retract-dialog"))) !== "retract") return;
    await this.guarded(async () => {
      for (const event of events) await this.retract(event, reason.value.trim(), kinds.get(event));
      say(events.length === 1 ? `Event ${events[0]} retracted` : `${events.length} events retracted`);
    });
    await this.newest();
  }
}

// A body in few words; it speaks of responses, which are counted from 1 here.
function said({ kind, body, target }) {
  if (kind === "vote")
    return body.both_bad
      ? "both bad"
      : body.preference === 0
        ? "tie"
        : `response ${body.preference > 0 ? 1 : 2} ${["", "slightly better", "better", "much better"][Math.abs(body.preference)]}`;
  if (kind === "ranking") return `ranks ${body.ranks.join(", ")}`;
  if (kind === "rating")
    return Object.entries(body.scores)
      .map(([axis, values]) => `${axis} ${values.join(", ")}`)
      .join("; ");
  if (WITHDRAWN.has(kind)) return [`event ${target}`, body.reason].filter(Boolean).join(": ");
  if (kind === "include") return `${body.annotator} counts again (event ${target}): ${body.reason}`;
  if (kind === "exclude") {
    const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
    const from = body.since ? ` from ${day(body.since)}` : "";
    return `${body.annotator} does not count${from}${body.until === null ? "" : ` to ${day(body.until)}`}: ${body.reason}`;
  }
  const about = body.response === null || body.response === undefined ? "" : `response ${body.response + 1}: `;
  const text = body.text ?? body.reason ?? "";
  return about + (text.length > 160 ? `${text.slice(0, 160)}…` : text);
}

const start = (text) => (text.trim().length > 40 ? `${text.trim().slice(0, 40)}…` : text.trim());

function lineage({ task, latency, guideline }) {
  if (!task) return "";
  const facts = [
    ["task", task.id],
    ["part of", PURPOSES[task.purpose] ?? task.purpose],
    ["strategy", task.strategy],
    ["origin", task.origin],
    ["key", task.key],
    ["guideline", guideline],
    ["time spent", latency >= 0 ? `${latency.toFixed(1)} s` : ""],
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
    facts.push([`response ${i + 1}`, `${from || "unknown origin"}\n${response.text}`]);
  });
  const list = make(
    "dl",
    {},
    ...facts.filter(([, text]) => text).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]),
  );
  return make("details", {}, make("summary", {}, `${{ pair: "Pair", ranking: "Ranking", rating: "Rating", correction: "Correction" }[task.form]}: ${start(task.prompt)}`), list);
}
