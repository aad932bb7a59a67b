// Acts on their way to the server. An act gets its key once, is kept until the server has answered, and is sent again after
// network errors, also by a page that was loaded anew: the server knows it by its key, so it happens once.

import { newKey } from "./dom.js";
import { call, sessionEnded, wait } from "./http.js";
import { Unreachable } from "./request.js";

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
    const act = { path, body: { key: newKey(), ...body } };
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
