// Seconds that a page has been looked at: while it is hidden, they stop.

export class Stopwatch {
  constructor() {
    this.start();
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.since = performance.now();
      else {
        this.before = this.seconds;
        this.since = null;
      }
    });
  }

  start(before = 0) {
    this.before = before;
    this.since = document.visibilityState === "visible" ? performance.now() : null;
  }

  get seconds() {
    const now = this.since === null ? 0 : (performance.now() - this.since) / 1000;
    return Math.round((this.before + now) * 1000) / 1000;
  }
}
