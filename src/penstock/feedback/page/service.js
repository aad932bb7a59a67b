// Talking to the service: calls with the session's token, acts that are sent until they are heard, and the tasks that one holds.

import { newKey } from "./dom.js";
import { find } from "./elements.js";
import { Refused, Unreachable, request } from "./request.js";

// Calls of the service's JSON routes with the session's token, and calls that are tried until the server is heard.


const PATIENCE = 15000; // milliseconds in which an answer must have come

// Signed out, or somebody else has signed in since this page was loaded: nothing of it is accepted any more.
export const sessionEnded = (error) => error instanceof Refused && (error.status === 401 || error.code === "csrf");

// The secret of this session that pages of others cannot know.
const csrf = () => document.querySelector("meta[name=csrf]").content;

// The project that this page shows; empty on pages that are about none.
export const project = () => document.querySelector("meta[name=project]").content;

// An act says itself which project it belongs to: it may be sent again by a page that shows another one.
export function inProject(path) {
  if (!project() || /[?&]project=/.test(path)) return path;
  return `${path}${path.includes("?") ? "&" : "?"}project=${encodeURIComponent(project())}`;
}

document.querySelector("#project")?.addEventListener("change", ({ target }) => target.form.requestSubmit());

export function call(given, body) {
  const headers = { Accept: "application/json" },
    path = inProject(given);
  if (body === undefined) return request(path, { headers }, PATIENCE);
  Object.assign(headers, { "Content-Type": "application/json", "X-CSRF-Token": csrf() });
  return request(path, { method: "POST", headers, body: JSON.stringify(body) }, PATIENCE);
}

const LONGEST_WAIT = 30; // seconds between two attempts

// Seconds before the next attempt; random, so that pages that lost one server do not come back at once.
export const wait = (attempt, least = 0) =>
  Math.max(least, Math.min(LONGEST_WAIT, 2 ** attempt) * (0.5 + Math.random() / 2));

// A call that changes nothing if it happens twice: tried until the server is heard. `tell(cause, seconds)` is called for each
// wait, and `tell(null)` at the end.
export async function insist(path, body, tell) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const answer = await call(path, body);
      if (attempt) tell(null);
      return answer;
    } catch (error) {
      if (!(error instanceof Unreachable)) {
        if (attempt) tell(null);
        throw error;
      }
      const seconds = wait(attempt, error.after);
      tell(error.message, seconds);
      await new Promise((resolve) => {
        setTimeout(resolve, seconds * 1000);
      });
    }
  }
}

// Where the session has ended, nothing but loading anew helps; what was written stays in this browser.
export function leaveIfSignedOut(error) {
  if (!sessionEnded(error)) return false;
  location.reload();
  return true;
}

// What this browser keeps for one user: drafts, and acts that the server has not acknowledged yet.

export class Memory {
  constructor(user, storage = localStorage) {
    this.user = user;
    this.prefix = `penstock/${encodeURIComponent(user)}/`;
    this.storage = storage;
    this.full = false; // whether something could not be kept
  }

  read(name) {
    try {
      return JSON.parse(this.storage.getItem(this.prefix + name));
    } catch {
      return null;
    }
  }

  write(name, value) {
    try {
      this.storage.setItem(this.prefix + name, JSON.stringify(value));
      this.full = false;
    } catch {
      this.full = true;
    }
    return !this.full;
  }

  drop(name) {
    this.storage.removeItem(this.prefix + name);
  }

  // Names that begin so, without the user's prefix.
  names(start) {
    return Object.keys(this.storage)
      .filter((name) => name.startsWith(this.prefix + start))
      .map((name) => name.slice(this.prefix.length));
  }

  clear(...starts) {
    for (const name of starts.flatMap((start) => this.names(start))) this.drop(name);
  }
}

// Acts on their way to the server. An act gets its key once, is kept until the server has answered, and is sent again after
// network errors, also by a page that was loaded anew: the server knows it by its key, so it happens once.


export class Outbox {
  // `show(cause, seconds)` is called while something is unsaved, and `show(null)` when nothing is.
  constructor(memory, show) {
    this.memory = memory;
    this.show = show;
    this.waiting = new Set();
    this.wake = () => {};
    addEventListener("online", () => this.wake());
  }

  // Acts that an earlier page left; gives the refusals among the answers.
  async deliverOld() {
    const refused = [];
    for (const name of this.memory.names("act/")) {
      const act = this.memory.read(name);
      try {
        if (act) await this.deliver(name, act);
      } catch (error) {
        if (sessionEnded(error)) throw error;
        refused.push(error);
      }
    }
    return refused;
  }

  async send(path, body) {
    const act = { path: inProject(path), body: { key: newKey(), ...body } };
    const name = `act/${act.body.key}`;
    this.memory.write(name, act);
    return this.deliver(name, act);
  }

  async deliver(name, act) {
    this.waiting.add(name);
    try {
      for (let attempt = 0; ; attempt += 1) {
        try {
          const answer = await call(act.path, act.body);
          this.memory.drop(name);
          return answer;
        } catch (error) {
          if (!(error instanceof Unreachable)) {
            if (!sessionEnded(error)) this.memory.drop(name); // after a new sign-in it is sent again
            throw error;
          }
          await this.pause(error, attempt);
        }
      }
    } finally {
      this.waiting.delete(name);
      if (!this.waiting.size) this.show(null);
    }
  }

  async pause(error, attempt) {
    const seconds = wait(attempt, error.after);
    this.show(error.message, seconds);
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

// The tasks that one holds: the one on the screen and the one fetched ahead; and keeping them while one works.


const SHARE = 1 / 3; // of a lease between two renewals

export class Holding {
  // `mine(task)` tells which of the tasks that one holds belong to this page.
  // `expired(yes)` is called when the hold on the current task has run out or is back; `taken(task)` when others have it;
  // `waiting(cause, seconds)` while the server is not heard.
  constructor({ leaseSeconds, most, mine, request, expired, taken, waiting }) {
    Object.assign(this, { leaseSeconds, most, mine, request, expired, taken, waiting });
    this.current = null;
    this.ahead = null;
    this.active = true; // whether somebody has worked since the last renewal
    this.lapsed = false;
    this.fetching = Promise.resolve();
    for (const name of ["keydown", "pointerdown", "wheel", "focus"])
      addEventListener(name, () => this.touch(), { passive: true });
    setInterval(() => this.tick(), leaseSeconds * SHARE * 1000);
  }

  // The task to begin with: the oldest one held, as after a reload or in a second tab, else a new one.
  async first() {
    const tasks = (await insist("/api/held", undefined, this.waiting)).tasks.filter(this.mine);
    [this.current, this.ahead] = [stamped(tasks[0]), stamped(tasks[1])];
    return this.current ? this.settled() : this.next();
  }

  // The task after the current one, which is done; null when nothing is left.
  async next() {
    await this.fetching;
    const done = this.current?.id;
    this.current = this.ahead?.id === done ? null : this.ahead;
    this.ahead = null;
    this.current ??= await this.fetch();
    return this.settled();
  }

  // A task that has come back to the front, as after an undo; what was there waits behind it.
  put(task) {
    if (this.current && this.current.id !== task.id) this.ahead = this.current;
    this.current = stamped(task);
    this.lapse(false);
  }

  settled() {
    this.lapse(Boolean(this.current) && this.current.expires <= Date.now());
    if (this.lapsed) this.renew(this.current);
    if (this.current && !this.ahead && this.most > 1) this.fetching = this.fetchAhead(this.current.id);
    return this.current;
  }

  async fetchAhead(current) {
    try {
      const found = await this.fetch();
      if (found?.id !== current) this.ahead = found;
    } catch (error) {
      if (!(error instanceof Refused)) throw error; // the next one is asked for again when it is needed
    }
  }

  // A new task. Who holds as many as they may, as in a second tab, goes on with one of those.
  async fetch() {
    try {
      return stamped((await insist("/api/next", this.request, this.waiting)).task);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 403) throw error;
      const { tasks } = await insist("/api/held", undefined, this.waiting);
      return stamped(tasks.find((task) => task.id !== this.current?.id && this.mine(task)));
    }
  }

  // Another tab has finished a task; gives whether it was the current one.
  dropped(id) {
    if (this.ahead?.id === id) this.ahead = null;
    return this.current?.id === id;
  }

  touch() {
    this.active = true;
    if (this.lapsed && !this.renewing) this.renew(this.current);
  }

  async tick() {
    if (!this.current) return;
    if (this.active && document.visibilityState === "visible" && !this.lapsed) {
      this.active = false;
      await Promise.all([this.renew(this.current), this.ahead && this.renew(this.ahead)]);
    }
    if (this.current && this.current.expires <= Date.now()) this.lapse(true);
  }

  async renew(task) {
    if (!task) return;
    this.renewing = true;
    try {
      const { deadline } = await call("/api/renew", { task: task.id });
      task.expires = Date.now() + deadline * 1000;
      if (task === this.current) this.lapse(false);
    } catch (error) {
      if (error instanceof Unreachable) return; // a later tick tries again
      if (task === this.ahead) this.ahead = null;
      else if (task === this.current) this.taken(task, error);
    } finally {
      this.renewing = false;
    }
  }

  lapse(yes) {
    if (this.lapsed === yes) return;
    this.lapsed = yes;
    this.expired(yes);
  }
}

function stamped(task) {
  return task ? { ...task, expires: Date.now() + task.deadline * 1000 } : null;
}

// Signing out takes along what this browser keeps for the user, and other tabs follow.


const channel = (user) => new BroadcastChannel(`penstock/${user}`);

export function wireSignOut(memory, tabs = channel(memory.user)) {
  find("#sign-out").addEventListener("submit", (event) => {
    const unsaved = memory.names("act/").length > 0;
    if (unsaved && !confirm("An answer has not been saved yet and would be lost. Sign out?")) {
      event.preventDefault();
      return;
    }
    memory.clear("draft/", "act/");
    tabs.postMessage({ left: true });
  });
  return tabs;
}
