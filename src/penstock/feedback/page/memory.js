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
