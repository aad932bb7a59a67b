// The answers side by side, as the server rendered them or with their differences marked.

import { prose, say } from "./dom.js";
import { find, make } from "./elements.js";
import { compare } from "./diff.js";
import { nameOf } from "./fields.js";

export class Answers {
  // `open(kind, place)` opens the panel for an edit or a critique.
  constructor(open) {
    this.open = open;
    this.marked = false;
  }

  show(task, form) {
    this.task = task;
    this.bodies = task.responses.map(() => make("div", { class: "prose" }));
    const cards = task.responses.map((_, place) => this.card(place, form.fields(place)));
    const list = find("#answers");
    list.className = `answers of-${Math.min(task.responses.length, 4)}`;
    list.replaceChildren(...cards);
    find("#diff").hidden = task.responses.length < 2;
    this.draw();
  }

  card(place, fields) {
    const name = nameOf(place),
      id = `answer-${place}`;
    const tool = (kind, text) =>
      make(
        "button",
        { type: "button", class: "quiet", "aria-label": `${text} answer ${name}`, onclick: () => this.open(kind, place) },
        text,
      );
    const scroll = this.bodies[place];
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "group");
    scroll.setAttribute("aria-labelledby", id);
    return make(
      "article",
      { class: `card answer place-${place}`, "aria-labelledby": id },
      make(
        "header",
        {},
        make("h2", { id }, `Answer ${name}`),
        make("span", { class: "remarks note" }),
        tool("edit", "Edit"),
        tool("critique", "Critique"),
      ),
      scroll,
      ...(fields.length ? [make("div", { class: "fields" }, ...fields)] : []),
    );
  }

  remarked(kind, place) {
    const card = find(`.place-${place ?? 0} .remarks`);
    card.textContent = place === null ? "critique of all saved" : `${kind} saved`;
  }

  toggleDiff() {
    this.marked = !this.marked;
    this.draw();
    say(this.marked ? find("#diff-note").textContent : "As written");
  }

  draw() {
    const { responses } = this.task,
      several = responses.length > 1;
    const marked = this.marked && several;
    find("#diff").setAttribute("aria-pressed", String(marked));
    find("#diff-note").textContent = "";
    if (!marked)
      return responses.forEach((response, place) => {
        this.bodies[place].className = "prose";
        prose(this.bodies[place], response.html);
      });
    return this.mark(responses);
  }

  // Everything is compared with the first answer; in a pair both sides are marked.
  mark(responses) {
    let unit = "words",
      first = null;
    for (let place = 1; place < responses.length; place += 1) {
      const found = compare(responses[0].text, responses[place].text);
      if (!found) {
        find("#diff-note").textContent = "These answers are too long to compare.";
        this.marked = false;
        return this.draw();
      }
      if (found.unit === "lines") unit = "lines";
      first ??= found.left;
      this.fill(place, found.right);
    }
    this.fill(0, responses.length === 2 ? first : [[responses[0].text, true]]);
    find("#diff-note").textContent =
      `${unit === "words" ? "Words" : "Lines"} that differ are marked${responses.length > 2 ? ", each answer against A" : ""}; as plain text.`;
    return undefined;
  }

  fill(place, pieces) {
    this.bodies[place].className = "plain";
    this.bodies[place].replaceChildren(...pieces.map(([text, shared]) => (shared ? text : make("mark", {}, text))));
  }
}
