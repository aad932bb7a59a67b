// What is judged: the prompt, the answers, and the guideline.

import { ask, prose, say } from "./dom.js";
import { compare } from "./diff.js";
import { all, find, make } from "./elements.js";
import { nameOf } from "./forms.js";
import { project } from "./service.js";

const ROLES = { user: "User", assistant: "Assistant", system: "System", tool: "Tool" };

// The prompt as turns of a conversation. It opens at its end, and shows by a fade and a button that there is more.
export class Prompt {
  constructor() {
    this.box = find("#prompt");
    this.card = find("#prompt-card");
    this.button = find("#prompt-whole");
    this.button.onclick = () => this.whole(!this.card.classList.contains("whole"));
    this.box.addEventListener("scroll", () => this.fade(), { passive: true });
    addEventListener("resize", () => this.fade());
  }

  show({ text, turns, media }, raw) {
    const shown = raw ? [make("div", { class: "raw" }, text)] : turns.map(turnOf);
    this.box.replaceChildren(...shown, ...media.map((one, i) => mediumOf(one, `Prompt, ${i + 1} of ${media.length}`, () => this.fade())));
    this.whole(false);
  }

  whole(yes) {
    this.card.classList.toggle("whole", yes);
    this.box.scrollTop = yes ? 0 : this.box.scrollHeight;
    this.button.hidden = !yes && this.box.scrollHeight <= this.box.clientHeight + 1;
    this.button.textContent = yes ? "Show less" : "↑ Show the whole prompt";
    this.button.setAttribute("aria-expanded", String(yes));
    this.fade();
  }

  fade() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    this.card.classList.toggle("above", scrollTop > 2);
    this.card.classList.toggle("beneath", scrollHeight - clientHeight - scrollTop > 2);
  }
}

function turnOf({ role, html }) {
  const body = prose(make("div", { class: "prose" }), html);
  if (!role) return body;
  return make("div", { class: `turn ${role}` }, make("b", { class: "role" }, ROLES[role] ?? role), body);
}

// An image, which a click enlarges, or a player. `loaded` hears when its size is known.
function mediumOf({ url, kind }, label, loaded) {
  const what = kind.split("/")[0];
  if (what !== "image") {
    const player = make(what, {
      src: url, controls: true, preload: "metadata", onloadedmetadata: loaded, "aria-label": `${label}: ${what === "audio" ? "sound" : "video"}`,
    });
    return make("figure", { class: "medium" }, player);
  }
  const alt = `${label}: image`;
  const image = make("img", { src: url, alt, onload: loaded });
  return make("figure", { class: "medium" }, make("button", { type: "button", title: "Enlarge", onclick: () => enlarge(url, alt) }, image));
}

function enlarge(url, alt) {
  const close = make("form", {}, make("button", { autofocus: true }, "Close"));
  const dialog = make("dialog", { class: "enlarged", "aria-label": alt }, close, make("img", { src: url, alt }));
  document.body.append(dialog);
  ask(dialog).then(() => dialog.remove());
}

// Whether everything in an answer can have been perceived: images are there, sounds and videos have been played at least in part.
// What cannot be loaded or played does not hold up the work; a flag says so.
function perceived(element) {
  const images = all("img", element).every((image) => image.complete);
  return images && all("audio, video", element).every((player) => player.played.length > 0 || player.error);
}

const ALIKE = 0.4; // of two texts: from here on it helps to mark their differences

// How much of the longer text the other one has too, in the same order; null where both are too long to tell.
function shared(left, right) {
  const found = compare(left, right);
  if (!found) return null;
  const size = (pieces) => pieces.reduce((sum, [text]) => sum + text.replace(/\s/g, "").length, 0);
  const longer = Math.max(size(found.left), size(found.right));
  return { ...found, share: longer ? size(found.left.filter(([, same]) => same)) / longer : 1 };
}

// The answers side by side: rendered, as raw text, or with their differences marked.
export class Answers {
  // `open(kind, place)` opens the panel for an edit or a critique; `memory` keeps whether differences are wanted.
  constructor(open, memory) {
    this.open = open;
    this.memory = memory;
    this.marked = memory.read("differences") === true;
    this.seen = new Set();
    for (const name of ["scroll", "resize", "keydown", "pointerdown", "timeupdate"])
      addEventListener(name, () => this.task && this.unseen(), { passive: true, capture: true });
  }

  show(task, form, raw) {
    this.task = task;
    this.raw = raw;
    this.seen.clear();
    this.bodies = task.responses.map(() => make("div", { class: "prose" }));
    this.media = task.responses.map(({ media }, place) =>
      make("div", { class: "media" }, ...media.map((one, i) => mediumOf(one, `Answer ${nameOf(place)}, ${i + 1} of ${media.length}`, () => this.unseen()))),
    );
    const cards = task.responses.map((_, place) => this.card(place, form.fields(place)));
    const list = find("#answers");
    list.className = `answers of-${Math.min(task.responses.length, 4)}`;
    list.replaceChildren(...cards);
    const [first, ...others] = task.responses.map(({ text }) => text);
    this.found = others.map((text) => (first && text ? shared(first, text) : null)).map((one) => (one && one.share >= ALIKE ? one : null));
    find("#diff").hidden = !this.found.some(Boolean);
    this.draw();
  }

  card(place, fields) {
    const name = nameOf(place),
      id = `answer-${place}`;
    const tool = (kind, text) =>
      make("button", { type: "button", class: "quiet", "aria-label": `${text} answer ${name}`, onclick: () => this.open(kind, place) }, text);
    const body = this.bodies[place];
    body.tabIndex = 0;
    body.setAttribute("role", "group");
    body.setAttribute("aria-labelledby", id);
    return make(
      "article",
      { class: `card answer place-${place}`, "aria-labelledby": id },
      make("header", {}, make("h2", { id }, this.bodies.length > 1 ? `Answer ${name}` : "Answer"), make("span", { class: "remarks note" }), tool("edit", "Edit"), tool("critique", "Critique")),
      body,
      this.media[place].childElementCount ? this.media[place] : null,
      fields.length ? make("div", { class: "fields" }, ...fields) : null,
    );
  }

  remarked(kind, place) {
    const card = find(`.place-${place ?? 0} .remarks`);
    card.textContent = place === null ? "critique of all saved" : `${kind} saved`;
  }

  // The first place whose answer has not been on the screen yet, clear of the bar; null when all have been.
  unseen() {
    const end = Math.min(innerHeight, find("#bar").getBoundingClientRect().top);
    if (!document.querySelector("dialog[open]"))
      this.bodies.forEach((body, place) => {
        const shown = body.textContent ? body : this.media[place];
        const { top, bottom, height } = shown.getBoundingClientRect();
        if (bottom >= 0 && top + Math.min(30, height) <= end && perceived(this.media[place])) this.seen.add(place);
      });
    return this.bodies.map((_, place) => place).find((place) => !this.seen.has(place)) ?? null;
  }

  // What is still to be done about an answer that is not seen yet.
  missing(place) {
    return find("audio, video", this.media[place]) ? "has not been played yet. Please play it" : "has not been on your screen yet. Please look at it";
  }

  reveal(place) {
    find(`.place-${place}`).scrollIntoView({ block: "start" });
  }

  toggleDiff() {
    this.marked = !this.marked;
    this.memory.write("differences", this.marked);
    this.draw();
    say(this.marked ? find("#diff-note").textContent : "Differences hidden");
  }

  // Everything is compared with the first answer; in a pair both sides are marked.
  draw() {
    const { responses } = this.task,
      marked = this.marked && this.found.some(Boolean);
    find("#diff").setAttribute("aria-pressed", String(marked));
    find("#diff-note").textContent = marked ? `Differences ${responses.length > 2 ? "from A " : ""}are highlighted in the plain text.` : "";
    responses.forEach(({ text, html }, place) => {
      const found = place ? this.found[place - 1]?.right : responses.length === 2 ? this.found[0]?.left : [[text, true]];
      const body = this.bodies[place];
      body.className = this.raw ? "raw" : marked ? "plain" : "prose";
      if (marked && found) body.replaceChildren(...found.map(([piece, same]) => (same ? piece : make("mark", {}, piece))));
      else if (marked || this.raw) body.replaceChildren(text);
      else prose(body, html);
    });
  }
}

// The guideline, over the work. A version that this user has not seen yet opens by itself, and nothing is judged before it is closed.
export class Guideline {
  constructor({ version, html }, memory, closed) {
    const kept = project() === "default" ? "guideline" : `guideline of ${project()}`;
    Object.assign(this, { version, memory, closed, kept });
    this.dialog = find("#guideline");
    prose(find("#guideline-text"), html);
    find("#guideline-version").textContent = `version ${version}`;
    find("#guideline-toggle").onclick = () => this.open();
    if (memory.read(kept) !== version) this.open();
  }

  async open() {
    if (this.dialog.open) return;
    await ask(this.dialog);
    this.memory.write(this.kept, this.version);
    find("#question").focus({ preventScroll: true });
    this.closed();
  }

  // A task was asked under a version; a note where that is not the one that this page has.
  note(version) {
    return version === this.version ? "" : `This task was written for version ${version} of the guideline; you see version ${this.version}.`;
  }
}
