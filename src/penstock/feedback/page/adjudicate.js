// The adjudication page: a list of what annotators disagree on; one dispute at a time is judged, with their votes next to it.

import { Desk } from "./desk.js";
import { banner, say } from "./dom.js";
import { find, make } from "./elements.js";
import { inWords, nameOf } from "./forms.js";
import { call, leaveIfSignedOut } from "./service.js";

const PURPOSE = "adjudication";
let waiting = new Map(); // by task
let desk = null;

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    if (!leaveIfSignedOut(error)) banner("notice", `${error.message}.`);
  }
}

async function load() {
  const found = await call("/api/adjudicate/list");
  waiting = new Map(found.tasks.map((task) => [task.id, task]));
  find("#waiting").textContent = found.waiting
    ? `${found.waiting} open ${found.waiting === 1 ? "dispute" : "disputes"}`
    : "No open disputes";
  find("#disputes").hidden = !found.tasks.length;
  find("#disputes ul").replaceChildren(...found.tasks.map(entry));
}

function entry(task) {
  const start = task.prompt.text.slice(0, 120);
  return make(
    "li",
    {},
    make(
      "button",
      { type: "button", class: "quiet", onclick: () => guarded(() => desk.take({ purpose: PURPOSE, task: task.id })) },
      start || "(empty prompt)",
    ),
    make("span", { class: "note" }, ` ${task.form}: ${task.votes.map(inShort).join("; ")}`),
  );
}

// A vote in few words, by the places that the desk shows.
function inShort({ kind, body }) {
  if (kind === "ranking") return inWords(body.ranks);
  if (kind === "rating")
    return Object.entries(body.scores)
      .map(([axis, values]) => `${axis} ${values.join(" / ")}`)
      .join(", ");
  if (body.both_bad) return "both bad";
  const strength = ["", "slightly better", "better", "much better"][Math.abs(body.preference)];
  return body.preference ? `${nameOf(body.preference > 0 ? 0 : 1)} ${strength}` : "tie";
}

function remark({ kind, body }) {
  const about = body.response === null ? "all answers" : `answer ${nameOf(body.response)}`;
  return make("li", {}, make("b", {}, `${kind === "edit" ? "Edit" : "Critique"} of ${about}: `), body.text);
}

// What others said, under the answers of the task on the screen.
function beside(task) {
  const found = waiting.get(task.id);
  if (!found) return;
  find("#below").append(
    make(
      "section",
      { class: "card votes-said", "aria-labelledby": "votes-said" },
      make("h2", { id: "votes-said" }, "What annotators answered"),
      make("ul", {}, ...found.votes.map((vote) => make("li", {}, inShort(vote)))),
      ...(found.remarks.length ? [make("ul", { class: "remarks-said" }, ...found.remarks.map(remark))] : []),
    ),
  );
}

find("#fill").onclick = () =>
  guarded(async () => {
    const { added } = await call("/api/adjudicate/fill", {});
    await load();
    say(added === 1 ? "1 new dispute" : `${added} new disputes`);
    if (added && desk && !desk.task) await desk.take({ purpose: PURPOSE });
  });

await guarded(load);
desk = await Desk.open({
  request: { purpose: PURPOSE },
  mine: (task) => waiting.has(task.id),
  most: 1,
  shown: beside,
  after: () => guarded(load),
});
