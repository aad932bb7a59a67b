// The three forms of judgement. Each is made for a task and a draft and gives:
//   kind      of the event it sends
//   bar       an element for the answer bar
//   below     elements under the answers
//   fields    for each place, elements for that answer's card
//   press(k)  takes a key, or not
//   draft()   what to keep while nothing is sent
//   body()    what to send; null while something is missing
// `desk.changed()` hears of every change; `desk.send()` sends.

import { key } from "./dom.js";
import { make } from "./elements.js";
import { nameOf, rated, scale, typeInto } from "./fields.js";

const STRENGTHS = [
  [3, "much better", "+++"],
  [2, "better", "++"],
  [1, "slightly better", "+"],
];

// The seven preferences, from the left one much better to the right one.
function preferences() {
  const side = (place, sign) =>
    STRENGTHS.map(([size, text, short]) => ({
      value: sign * size,
      text: `${nameOf(place)} ${text}`,
      short: `${nameOf(place)}${short}`,
    }));
  return [...side(0, 1), { value: 0, text: "Tie", short: "=" }, ...side(1, -1).reverse()];
}

function sender(desk, note) {
  const button = make("button", { type: "button", class: "strong send", onclick: () => desk.send() }, "Send ", key("Enter"));
  const element = make("div", { class: "sending" }, make("p", { class: "note", role: "status" }), button);
  const update = (missing) => {
    element.firstElementChild.textContent = missing || note();
    button.setAttribute("aria-disabled", String(Boolean(missing)));
  };
  return { element, button, update };
}

// A button of a pair. Where several parts make the answer it shows whether it is chosen, otherwise it sends at once.
function voteButton({ value, text, short }, name, kind, several, onclick) {
  const pressed = several ? "false" : null;
  return make(
    "button",
    { type: "button", class: kind, "data-choice": value, "aria-keyshortcuts": name, "aria-pressed": pressed, onclick },
    key(name),
    make("span", { class: "long" }, text),
    make("span", { class: "short", "aria-hidden": "true" }, short),
  );
}

export function pairForm(task, draft, desk) {
  const axes = task.axes.filter((axis) => axis !== "overall");
  const several = axes.length > 0,
    options = preferences();
  let choice = draft?.choice ?? null; // a preference, or "both_bad"
  const send = several ? sender(desk, () => "Parts left open are fine.") : null;
  const choose = (value) => {
    choice = value;
    update();
    desk.changed();
    if (!several) desk.send();
  };
  const button = (option, name, kind) => voteButton(option, name, kind, several, () => choose(option.value));
  const side = ({ value }) => (value > 0 ? "left" : value < 0 ? "right" : "");
  const buttons = options.map((option, i) => button(option, String(i + 1), side(option)));
  const bad = button({ value: "both_bad", text: "Both bad", short: "bad" }, "b", "bad");
  const rows = axes.map((axis) =>
    scale({
      legend: axis,
      kind: "axis",
      value: draft?.axes?.[axis] ?? null,
      changed: () => desk.changed(),
      options: options.map((option) => ({ value: option.value, text: option.short, label: option.text })),
    }),
  );
  const below = several
    ? [make("section", { class: "card axes", "aria-label": "In particular" }, ...rows.map((row) => row.element))]
    : [];
  const bar = make(
    "div",
    { class: "pair" },
    make(
      "div",
      { class: "votes", role: "group", "aria-label": several ? "Overall" : "Which answer is better?" },
      ...buttons,
      bad,
    ),
    send?.element,
  );
  const given = () => Object.fromEntries(axes.map((axis, i) => [axis, rows[i].value]).filter(([, value]) => value !== null));
  function update() {
    if (!several) return;
    for (const one of [...buttons, bad]) one.setAttribute("aria-pressed", String(one.dataset.choice === String(choice)));
    send.update(choice === null ? "Choose which is better overall." : "");
  }
  function press(name) {
    if (name === "b") choose("both_bad");
    else if (name === "0") choose(0);
    else if (/^[1-7]$/.test(name)) {
      const row = rows.find((one) => one.holds(document.activeElement)),
        { value } = options[Number(name) - 1];
      if (row) {
        row.set(value);
        desk.changed();
      } else choose(value);
    } else return false;
    return true;
  }
  update();
  return {
    kind: "vote",
    bar,
    below,
    fields: () => [],
    press,
    draft: () => (several && (choice !== null || Object.keys(given()).length) ? { choice, axes: given() } : null),
    body: () =>
      choice === null
        ? null
        : { preference: choice === "both_bad" ? 0 : choice, both_bad: choice === "both_bad", axes: given() },
  };
}

export function rankingForm(task, draft, desk) {
  const count = task.responses.length;
  const options = Array.from({ length: count }, (_, i) => ({
    value: i + 1,
    text: String(i + 1),
    label: i === 0 ? "1, best" : i === count - 1 ? `${count}, worst` : String(i + 1),
  }));
  const ranks = () => fields.map((field) => field.value);
  const send = sender(desk, () => inWords(ranks()));
  const update = () => {
    const open = ranks().flatMap((rank, place) => (rank === null ? [nameOf(place)] : []));
    send.update(open.length ? `Without a rank: ${open.join(", ")}. Equal ranks are ties.` : "");
  };
  const changed = () => {
    update();
    desk.changed();
  };
  const fields = task.responses.map((_, place) =>
    scale({ legend: `Rank of ${nameOf(place)}`, options, value: draft?.ranks?.[place] ?? null, changed }),
  );
  update();
  return {
    kind: "ranking",
    bar: send.element,
    below: [],
    fields: (place) => [fields[place].element],
    press: (name) => /^[1-9]$/.test(name) && typeInto(fields, Number(name), changed, send.button),
    draft: () => (ranks().some((rank) => rank !== null) ? { ranks: ranks() } : null),
    body: () => (ranks().includes(null) ? null : { ranks: ranks() }),
  };
}

// "B > A = C" for ranks by place.
export function inWords(ranks) {
  const levels = [...new Set(ranks)].sort((a, b) => a - b);
  return levels.map((level) => ranks.flatMap((rank, place) => (rank === level ? [nameOf(place)] : [])).join(" = ")).join(" > ");
}

export function ratingForm(task, draft, desk) {
  const [low, high] = task.scale;
  const send = sender(desk, () => "All rated.");
  const update = () => {
    const open = fields.filter((field) => field.value === null).length;
    send.update(open ? `${fields.length - open} of ${fields.length} rated, from ${low} (lowest) to ${high} (highest).` : "");
  };
  const changed = () => {
    update();
    desk.changed();
  };
  const cards = task.responses.map((_, place) =>
    task.axes.map((axis) =>
      rated({
        legend: task.axes.length > 1 || axis !== "overall" ? axis : `Rating of ${nameOf(place)}`,
        low,
        high,
        value: draft?.scores?.[axis]?.[place] ?? null,
        changed,
      }),
    ),
  );
  const fields = cards.flat();
  const scores = () => Object.fromEntries(task.axes.map((axis, i) => [axis, cards.map((card) => card[i].value)]));
  update();
  return {
    kind: "rating",
    bar: send.element,
    below: [],
    fields: (place) => cards[place].map((field) => field.element),
    press: (name) => /^[0-9]$/.test(name) && typeInto(fields, Number(name), changed, send.button),
    draft: () => (fields.some((field) => field.value !== null) ? { scores: scores() } : null),
    body: () => (fields.some((field) => field.value === null) ? null : { scores: scores() }),
  };
}

export const FORMS = {
  pair: { make: pairForm, question: "Which answer is better?" },
  ranking: { make: rankingForm, question: "Rank the answers, 1 is best" },
  rating: { make: ratingForm, question: "Rate each answer" },
};
