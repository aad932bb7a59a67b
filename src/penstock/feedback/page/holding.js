// The tasks that one holds: the one on the screen and the one fetched ahead; and keeping them while one works.

import { call, insist } from "./http.js";
import { Refused, Unreachable } from "./request.js";

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
