// The three forms of judgement, and the fields they are made of.

import { key } from "./dom.js";
import { compare } from "./diff.js";
import { make } from "./elements.js";

// One value of an answer: a row of radio buttons, or a number. Both give {element, value, set(value), focus(), holds(target)}.


const MOST_BUTTONS = 11;
let count = 0;

export const nameOf = (place) => (place < 26 ? String.fromCharCode(65 + place) : String(place + 1));

// options: [{value, text, label}]; `changed` is called when somebody has chosen.
export function scale({ legend, options, value = null, changed, kind = "" }) {
  const group = `scale-${(count += 1)}`;
  const radios = options.map((option) =>
    make("input", {
      type: "radio",
      name: group,
      value: option.value,
      checked: option.value === value,
      "aria-label": option.label ?? option.text,
      onchange: changed,
    }),
  );
  const element = make(
    "fieldset",
    { class: `scale ${kind}` },
    make("legend", {}, legend),
    make("div", { class: "row" }, ...options.map((option, i) => make("label", {}, radios[i], make("span", {}, option.text)))),
  );
  return {
    element,
    get value() {
      const chosen = radios.find((radio) => radio.checked);
      return chosen ? Number(chosen.value) : null;
    },
    set(wanted) {
      const radio = radios.find((one) => Number(one.value) === wanted);
      if (radio) radio.checked = true;
      return Boolean(radio);
    },
    focus: () => (radios.find((radio) => radio.checked) ?? radios[0]).focus(),
    holds: (target) => element.contains(target),
  };
}

// A number from low to high, for scales with too many steps for buttons.
export function number({ legend, low, high, value = null, changed }) {
  const input = make("input", {
    type: "number",
    min: low,
    max: high,
    step: "any",
    inputmode: "decimal",
    value,
    oninput: changed,
  });
  const element = make("label", { class: "number" }, make("span", {}, legend), input, make("small", {}, `${low} to ${high}`));
  return {
    element,
    get value() {
      const given = input.valueAsNumber;
      return given >= low && given <= high ? given : null;
    },
    set: () => false,
    focus: () => input.focus(),
    holds: (target) => element.contains(target),
  };
}

// Whole numbers from low to high as buttons where they are few, else a number.
export function rated({ legend, low, high, value, changed }) {
  const steps = high - low + 1;
  if (!Number.isInteger(low) || !Number.isInteger(high) || steps > MOST_BUTTONS)
    return number({ legend, low, high, value, changed });
  const options = Array.from({ length: steps }, (_, i) => ({ value: low + i, text: String(low + i) }));
  options[0].label = `${low}, lowest`;
  options.at(-1).label = `${high}, highest`;
  return scale({ legend, options, value, changed });
}

// Number keys fill a list of fields: the one that has the focus, else the first empty one; then the focus moves on.
export function typeInto(fields, digit, changed, end) {
  const field = fields.find((one) => one.holds(document.activeElement)) ?? fields.find((one) => one.value === null);
  if (!field || !field.set(digit)) return false;
  changed();
  const next = fields.find((one) => one.value === null);
  if (next) next.focus();
  else end.focus();
  return true;
}

// The three forms of judgement. Each is made for a task and a draft and gives:
//   kind      of the event it sends
//   bar       an element for the answer bar
//   below     elements under the answers
//   fields    for each place, elements for that answer's card
//   press(k)  takes a key, or not
//   draft()   what to keep while nothing is sent
//   body()    what to send; null while something is missing
// `desk.changed()` hears of every change; `desk.send()` sends.


const STRENGTHS = [
  [3, "much better"],
  [2, "better"],
  [1, "slightly better"],
];

// The seven preferences, from the left one much better to the right one.
function preferences() {
  const side = (place, sign) =>
    STRENGTHS.map(([size, text]) => ({ value: sign * size, text: `${nameOf(place)} ${text}` }));
  return [...side(0, 1), { value: 0, text: "Tie" }, ...side(1, -1).reverse()];
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
function voteButton({ value, text }, name, kind, several, onclick) {
  const pressed = several ? "false" : null;
  return make(
    "button",
    { type: "button", class: kind, "data-choice": value, "aria-keyshortcuts": name, "aria-pressed": pressed, onclick },
    key(name),
    make("span", {}, text),
  );
}

export function pairForm(task, draft, desk) {
  const axes = task.axes.filter((axis) => axis !== "overall");
  const several = axes.length > 0,
    options = preferences();
  let choice = draft?.choice ?? null; // a preference, or "both_bad"
  const send = several ? sender(desk, () => "You may leave the parts below open.") : null;
  const choose = (value) => {
    choice = value;
    update();
    desk.changed();
    if (!several) desk.send();
  };
  const button = (option, name, kind) => voteButton(option, name, kind, several, () => choose(option.value));
  const side = ({ value }) => (value > 0 ? "left" : value < 0 ? "right" : "");
  const buttons = options.map((option, i) => button(option, String(i + 1), side(option)));
  const bad = button({ value: "both_bad", text: "Both bad" }, "b", "bad");
  const rows = axes.map((axis) =>
    scale({
      legend: axis,
      kind: "axis",
      value: draft?.axes?.[axis] ?? null,
      changed: () => desk.changed(),
      options,
    }),
  );
  const below = several
    ? [make("section", { class: "card axes", "aria-label": "By aspect" }, ...rows.map((row) => row.element))]
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
    send.update(choice === null ? "Choose which answer is better overall." : "");
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
    send.update(open.length ? `Not ranked yet: ${open.join(", ")}. Equal ranks are ties.` : "");
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

// One answer to be put right: sent unchanged it says that there is nothing to correct.
export function correctionForm(task, draft, desk) {
  const original = task.responses[0].text;
  const send = sender(desk, () => (text.value === original ? "Unchanged: send it if there is nothing to correct." : "Changed as marked below."));
  const marks = make("div", { class: "plain", "aria-hidden": "true" });
  const update = () => {
    const found = text.value === original ? null : compare(original, text.value);
    marks.replaceChildren(...(found?.right ?? []).map(([piece, same]) => (same ? piece : make("mark", {}, piece))));
    send.update(text.value.trim() ? "" : "Write the corrected answer.");
  };
  const changed = () => {
    update();
    desk.changed();
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) desk.send();
  };
  const text = make("textarea", { rows: 10, maxlength: 200000, value: draft?.text ?? original, oninput: changed, onkeydown: keys });
  const card = make("section", { class: "card" }, make("label", { class: "corrected" }, "The corrected answer", text), marks);
  update();
  return {
    kind: "correction",
    bar: send.element,
    below: [card],
    fields: () => [],
    press: () => false,
    draft: () => (text.value === original ? null : { text: text.value }),
    body: () => (text.value.trim() ? { text: text.value } : null),
  };
}

export const FORMS = {
  correction: { make: correctionForm, question: "Correct the answer" },
  pair: { make: pairForm, question: "Which answer is better?" },
  ranking: { make: rankingForm, question: "Rank the answers, 1 is best" },
  rating: { make: ratingForm, question: "Rate each answer" },
};
