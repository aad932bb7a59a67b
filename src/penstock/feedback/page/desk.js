// One task at a time: shown, judged, sent; drafts kept; what goes wrong on the way shown and mended.

import { KEYS, Stopwatch, ask, banner, listen, say } from "./dom.js";
import { all, find, make } from "./elements.js";
import { Answers, Guideline, Prompt } from "./content.js";
import { FORMS, nameOf } from "./forms.js";
import { Remark, pending, textsOf } from "./remark.js";
import { Refused } from "./request.js";
import { Holding, Memory, Outbox, insist, leaveIfSignedOut, wireSignOut } from "./service.js";

const NOTHING = "No more tasks for now";
const GONE = {
  already_answered: "You have already answered this task, perhaps in another tab.",
  not_allowed: "This task is no longer open to you.",
  not_found: "This task is no longer assigned to you.",
};

const LONGEST_KEPT = 30 * 86400000; // milliseconds after which a draft is forgotten

export class Desk {
  // `request` is what /api/next is asked with, `mine(task)` tells which held tasks belong here, `most` how many may be held;
  // `shown(task)` is called when a task is on the screen, `after()` when an answer has been saved or taken back, `counted(done)` when
  // the number of answers is known.
  static async open(options) {
    try {
      const desk = new Desk(await insist("/api/me", undefined, unheard), options);
      await desk.begin();
      return desk;
    } catch (error) {
      if (!leaveIfSignedOut(error)) fail(error);
      return null;
    }
  }

  constructor(me, { request, mine = () => true, most = me.held_most, shown = () => {}, after = () => {}, counted = () => {} }) {
    this.me = me;
    this.shown = shown;
    this.after = after;
    this.counted = counted;
    this.memory = new Memory(me.name);
    this.outbox = new Outbox(this.memory, (cause, seconds) => this.unsaved(cause, seconds));
    this.holding = new Holding({
      leaseSeconds: me.lease_seconds,
      most,
      mine,
      request,
      expired: (yes) => this.expired(yes),
      taken: (task, error) => this.busy || this.gone(task, error),
      waiting: unheard,
    });
    this.prompt = new Prompt();
    this.answers = new Answers((kind, place) => this.remark.open(kind, place), this.memory);
    this.raw = this.memory.read("raw") === true;
    this.watch = new Stopwatch();
    this.guideline = new Guideline(me.guideline, this.memory, () => this.watch.start(this.draft().seen)); // reading it is no work on a task
    this.remark = new Remark({
      drafts: { read: () => this.draft().remarks, write: (remarks) => this.keep({ remarks }) },
      send: (kind, body) => this.submit(kind, body),
    });
    this.sent = new Map(); // drafts of what was sent, for undo
    this.busy = false;
  }

  async begin() {
    this.wire();
    this.forget();
    this.count(this.me.done);
    for (const error of await this.outbox.deliverOld())
      this.tell(`An answer from your last visit could not be saved: ${error.message}.`);
    await this.guarded(async () => this.show(await this.holding.first()));
  }

  wire() {
    find("#skip").onclick = () => this.submit("skip", {});
    find("#flag").onclick = () => this.flag();
    find("#edit").onclick = () => this.remark.open("edit");
    find("#critique").onclick = () => this.remark.open("critique");
    find("#undo").onclick = () => this.undo();
    find("#diff").onclick = () => this.answers.toggleDiff();
    find("#raw").onclick = () => this.view(!this.raw);
    find("#help-open").onclick = () => ask(find("#help-dialog"));
    find("#help-keys").replaceChildren(
      ...KEYS.flatMap(([keys, text]) => [make("dt", {}, make("kbd", {}, keys)), make("dd", {}, text)]),
    );
    const on = find("#keys-on");
    on.checked = this.memory.read("keys") !== "off";
    on.onchange = () => this.memory.write("keys", on.checked ? "on" : "off");
    listen(
      (name) => this.press(name),
      () => on.checked,
    );
    this.tabs = wireSignOut(this.memory);
    this.tabs.onmessage = ({ data }) => this.heard(data);
  }

  press(name) {
    const buttons = {
      s: "#skip",
      f: "#flag",
      e: "#edit",
      c: "#critique",
      u: "#undo",
      d: "#diff",
      r: "#raw",
      "?": "#help-open",
      g: "#guideline-toggle",
    };
    if (name in buttons) {
      const button = find(buttons[name]);
      if (!button.disabled && (button.offsetParent || name === "u" || name === "?")) button.click();
      return true;
    }
    if (!this.task || this.busy) return false;
    if (name === "Enter") return (this.send(), true);
    return this.form.press(name);
  }

  // Show a task, or that there is none.
  show(task) {
    this.task = task;
    this.watch.start(this.draft().seen);
    this.lock(false);
    find("#work").hidden = find("#bar").hidden = find("#views").hidden = !task;
    const question = find("#question");
    if (!task) {
      question.textContent = NOTHING;
      this.explain();
      find("#bar").hidden = !this.sent.size;
      for (const part of [find("#judgement"), ...all(".others > :not(#undo)")]) part.hidden = true;
    } else {
      for (const part of [find("#judgement"), ...all(".others > *")]) part.hidden = false;
      this.lay(task, question);
    }
    scrollTo(0, 0);
    question.focus({ preventScroll: true });
  }

  // Why there is no task: none is there, or one has reached one's limit, or an administrator has to decide.
  async explain() {
    find("#hint").textContent = "Check back later: new tasks will appear here.";
    const me = await insist("/api/me", undefined, unheard).catch(() => this.me),
      { paused, quota } = me.admission ?? {};
    if (this.task) return;
    if (paused) find("#hint").textContent = `Your work is paused: ${paused}. An administrator has to let you continue.`;
    else if (quota && me.done >= quota) find("#hint").textContent = `You have answered all ${quota} questions you were asked for. Thank you!`;
  }

  lay(task, question) {
    const { make: form, question: words } = FORMS[task.form];
    question.textContent = words;
    const draft = this.draft();
    this.form = form(task, draft.answer, { changed: () => this.keep({ answer: this.form.draft() }), send: () => this.send() });
    const drafted = draft.answer || draft.remarks ? "Your draft has been restored." : "";
    find("#hint").textContent = [this.trial(), drafted, this.guideline.note(task.guideline)].filter(Boolean).join(" ");
    this.answers.show(task, this.form, this.raw);
    this.view(this.raw);
    this.remark.show(task);
    find("#judgement").replaceChildren(this.form.bar);
    find("#below").replaceChildren(...this.form.below);
    this.shown(task);
  }

  // How far the qualification is, with which somebody new begins.
  trial() {
    const { qualify = 0 } = this.me.admission ?? {},
      done = Number(find("#done").textContent) || 0;
    return done < qualify ? `Qualification: question ${done + 1} of ${qualify}.` : "";
  }

  // Prompt and answers rendered, or exactly as they were written.
  view(raw) {
    if (raw !== this.raw) say(raw ? "Raw text" : "Formatted text");
    this.raw = this.answers.raw = raw;
    this.memory.write("raw", raw);
    find("#raw").setAttribute("aria-pressed", String(raw));
    this.prompt.show(this.task.prompt, raw);
    this.answers.draw();
  }

  // Drafts: {answer, remarks, seen: seconds that the task has been looked at, at: when it was written}

  forget() {
    for (const name of this.memory.names("draft/")) {
      if (!(Date.now() - this.memory.read(name)?.at < LONGEST_KEPT)) this.memory.drop(name);
    }
  }

  draft() {
    return (this.task && this.memory.read(`draft/${this.task.id}`)) ?? {};
  }

  keep(part) {
    const { answer, remarks } = { ...this.draft(), ...part };
    const name = `draft/${this.task.id}`;
    if (!answer && !remarks) this.memory.drop(name);
    else if (!this.memory.write(name, { answer, remarks, seen: this.watch.seconds, at: Date.now() }))
      this.tell("This browser has no room left for drafts. Please send your answer soon.");
  }

  // Sending

  send() {
    const body = this.form.body();
    if (body) return this.submit(this.form.kind, body);
    say(find("#judgement [role=status]")?.textContent || "Something is still missing");
    return null;
  }

  // Submit one event for the task on the screen; gives whether it was saved. What ends the task is followed by the next one.
  async submit(kind, body) {
    if (!this.task || this.busy) return false;
    const task = this.task,
      remark = kind === "edit" || kind === "critique";
    const unseen = kind === this.form.kind ? this.answers.unseen() : null;
    if (unseen !== null) {
      this.answers.reveal(unseen);
      this.tell(`Not sent: answer ${nameOf(unseen)} ${this.answers.missing(unseen)}, then answer.`);
      return false;
    }
    // Nothing may be awaited before the lock but a dialog, or a second key would come through.
    if (!remark && pending(this.draft()).length && !(await this.settle())) return false;
    const latency = this.watch.seconds;
    const draft = this.draft();
    this.lock(true);
    return this.guarded(async () => {
      const { done } = await this.outbox.send("/api/submit", { task: task.id, kind, body, latency, guideline: this.me.guideline.version });
      this.count(done);
      if (remark) {
        this.lock(false);
        say(`${kind === "edit" ? "Edit" : "Critique"} saved`);
        this.answers.remarked(kind, body.response);
        return true;
      }
      this.sent.set(task.id, draft.answer ?? this.form.draft?.() ?? null);
      this.memory.drop(`draft/${task.id}`);
      this.tabs.postMessage({ done: task.id });
      this.after();
      await this.advance(kind === "skip" ? "Skipped." : kind === "flag" ? "Flagged." : "Saved.");
      return true;
    }, task);
  }

  // Ask what becomes of edits and critiques that were written but not saved; gives whether the answer may be sent.
  async settle() {
    const remarks = pending(this.draft());
    if (!remarks.length) return true;
    const choice = await ask(find("#pending-dialog"));
    if (choice === "save") {
      for (const [kind, body] of remarks) if (!(await this.submit(kind, body))) return false;
      this.keep({ remarks: null });
    }
    return choice !== "";
  }

  async advance(done) {
    const task = await this.holding.next();
    this.show(task);
    say(`${done} ${task ? find("#question").textContent : NOTHING}`);
  }

  // Take a certain task; the one on the screen waits.
  async take(request) {
    if (this.busy) return;
    this.lock(true);
    await this.guarded(async () => {
      const { task } = await insist("/api/next", request, unheard);
      this.lock(false);
      if (!task) return this.tell("Someone else is working on it.");
      this.holding.put(task);
      return this.show(this.holding.current);
    });
  }

  async flag() {
    const dialog = find("#flag-dialog"),
      reason = find("#flag-reason");
    reason.value = "";
    if ((await ask(dialog)) === "flag") await this.submit("flag", { reason: reason.value.trim() });
  }

  async undo() {
    if (this.busy) return;
    this.lock(true);
    await this.guarded(async () => {
      const { task, done } = await this.outbox.send("/api/undo", {});
      this.count(done);
      this.lock(false);
      if (!task) return this.tell("Your last edit, critique, skip or flag has been undone.");
      const answer = this.sent.get(task.id);
      if (answer) this.memory.write(`draft/${task.id}`, { ...this.memory.read(`draft/${task.id}`), answer, at: Date.now() });
      this.holding.put(task);
      this.show(this.holding.current);
      this.after();
      return say("Undone. You can answer it again.");
    });
  }

  // Do something that the server may refuse; gives what it gives, or false.
  async guarded(work, task = this.task) {
    try {
      return await work();
    } catch (error) {
      if (leaveIfSignedOut(error)) return false;
      this.lock(false);
      if (error.code === "nothing_to_undo") this.tell("There is nothing to undo.");
      else if (task && (error.code === "seat_taken" || error.code in GONE)) await this.gone(task, error);
      else if (error instanceof Refused) this.tell(error.message);
      else fail(error);
      return false;
    }
  }

  // The current task cannot be answered any more: whatever was written is offered to be copied, then the next one comes.
  async gone(task, error) {
    if (task !== this.task || this.leaving) return;
    this.leaving = true;
    const written = textsOf(this.draft());
    if (error.code === "seat_taken" && written) {
      const dialog = find("#lost-dialog"),
        text = find("#lost-text");
      text.value = written;
      find("#lost-copy").onclick = () => {
        text.select();
        navigator.clipboard?.writeText(written).then(() => say("Copied"));
      };
      await ask(dialog);
    } else this.tell(GONE[error.code] ?? "Your time on this task ran out and someone else has taken it. Here is the next one.");
    this.memory.drop(`draft/${task.id}`);
    this.leaving = false;
    this.lock(true);
    await this.guarded(() => this.advance("Next task."), null);
  }

  // What other tabs of the same user say

  heard(data) {
    if (data.left) location.assign("/sign-in");
    else if (data.done && this.holding.dropped(data.done) && !this.busy) this.gone(this.task, { code: "already_answered" });
  }

  // Telling

  count(done) {
    if (done === undefined) return;
    find("#done").textContent = String(done);
    this.counted(done);
  }

  tell(text) {
    banner("notice", text);
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => banner("notice", null), 12000);
  }

  unsaved(cause, seconds) {
    banner("unsaved", cause && `Not saved yet (${cause}). It is kept in this browser; trying again in ${Math.ceil(seconds)} s.`, () =>
      this.outbox.wake(),
    );
  }

  expired(yes) {
    banner(
      "expired",
      yes && "Your time on this task has run out. You can still answer as long as nobody else has taken it.",
      () => this.holding.renew(this.task),
    );
  }

  lock(yes) {
    this.busy = yes;
    find("#bar").setAttribute("aria-busy", String(yes));
    for (const button of all("#bar button, #remark button")) button.disabled = yes;
  }
}

function unheard(cause, seconds) {
  banner("notice", cause && `Waiting for the server (${cause}); trying again in ${Math.ceil(seconds)} s.`);
}

function fail(error) {
  banner("notice", `${error.message}. Reload the page to continue; your drafts are kept.`);
  throw error;
}
