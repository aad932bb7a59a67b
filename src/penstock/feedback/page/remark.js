// The panel in which an answer is edited or criticised. What is typed is kept as a draft until it is saved.

import { say } from "./dom.js";
import { find, make } from "./elements.js";
import { nameOf } from "./forms.js";

const WHOLE = "whole";
const KINDS = {
  edit: { title: "Edit an answer", label: "The answer as it should be" },
  critique: { title: "Critique", label: "What is good or bad, and why" },
};

export class Remark {
  // `drafts` gives and keeps {edit: {place: text}, critique: {place or "whole": text}}; `send(kind, body)` saves.
  constructor({ drafts, send }) {
    this.drafts = drafts;
    this.send = send;
    this.panel = find("#remark");
    this.text = find("#remark-text");
    this.places = find(".targets", this.panel);
    this.kind = null;
    find("form", this.panel).addEventListener("submit", (event) => {
      event.preventDefault();
      this.save();
    });
    find("#remark-close").addEventListener("click", () => this.close());
    this.text.addEventListener("input", () => this.keep());
    this.panel.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.save();
      }
    });
  }

  show(task) {
    this.task = task;
    this.kind = null;
    this.panel.hidden = true;
  }

  open(kind, place) {
    if (!this.task) return;
    this.back = document.activeElement;
    this.kind = kind;
    const one = this.task.responses.length === 1;
    this.place = place ?? this.drafted(kind) ?? (kind === "critique" && !one ? WHOLE : 0);
    find("h2", this.panel).textContent = KINDS[kind].title;
    find("#remark-label").textContent = KINDS[kind].label;
    const targets = [...this.task.responses.keys(), ...(kind === "critique" ? [WHOLE] : [])];
    this.places.replaceChildren(make("legend", {}, "About"), ...targets.map((target) => this.choice(target)));
    this.panel.hidden = false;
    this.fill();
    this.text.focus();
    this.panel.scrollIntoView({ block: "nearest" });
  }

  choice(target) {
    return make(
      "label",
      {},
      make("input", {
        type: "radio",
        name: "target",
        value: target,
        checked: target === this.place,
        onchange: () => {
          this.place = target;
          this.fill();
        },
      }),
      make("span", {}, target === WHOLE ? "All together" : `Answer ${nameOf(target)}`),
    );
  }

  // The place of a draft of this kind, if there is one.
  drafted(kind) {
    const [place] = Object.keys(this.drafts.read()?.[kind] ?? {});
    return place === undefined ? null : place === WHOLE ? WHOLE : Number(place);
  }

  original() {
    return this.kind === "edit" ? this.task.responses[this.place].text : "";
  }

  fill() {
    this.text.value = this.drafts.read()?.[this.kind]?.[this.place] ?? this.original();
  }

  keep() {
    const kept = { edit: {}, critique: {}, ...this.drafts.read() };
    if (this.text.value === this.original()) delete kept[this.kind][this.place];
    else kept[this.kind][this.place] = this.text.value;
    this.drafts.write(Object.keys(kept.edit).length + Object.keys(kept.critique).length ? kept : null);
  }

  close() {
    this.panel.hidden = true;
    (this.back?.isConnected ? this.back : find("#question")).focus();
  }

  async save() {
    const text = this.text.value;
    if (!text.trim() || text === this.original()) {
      say(this.kind === "edit" ? "You have not changed anything yet" : "You have not written anything yet");
      this.text.focus();
      return;
    }
    const { kind, place, task } = this;
    if (!(await this.send(kind, { response: place === WHOLE ? null : place, text }))) return;
    if (this.task !== task) return;
    this.text.value = this.original();
    this.keep();
    this.close();
  }
}

// What a draft holds that has not been saved, as [kind, body of an event].
export function pending(draft) {
  const parts = Object.keys(KINDS).flatMap((kind) =>
    Object.entries(draft?.remarks?.[kind] ?? {}).map(([place, text]) => [kind, place, text]),
  );
  return parts
    .filter(([, , text]) => text.trim())
    .map(([kind, place, text]) => [kind, { response: place === WHOLE ? null : Number(place), text }]);
}

// The same as a text, to be copied by somebody whose task is gone.
export function textsOf(draft) {
  const about = (response) => (response === null ? "all answers" : `answer ${nameOf(response)}`);
  return pending(draft)
    .map(([kind, { response, text }]) => `${kind} of ${about(response)}:\n${text}`)
    .join("\n\n");
}
