// The guideline next to the work. A version that this user has not seen yet opens by itself.

import { banner, prose, say } from "./dom.js";
import { find } from "./elements.js";

export class Guideline {
  constructor({ version, html }, memory) {
    this.version = version;
    this.memory = memory;
    this.panel = find("#guideline");
    this.button = find("#guideline-toggle");
    prose(find("#guideline-text"), html);
    find("#guideline-version").textContent = `version ${version}`;
    this.button.onclick = () => this.open(this.panel.hidden);
    find("#guideline-close").onclick = () => {
      this.open(false);
      find("#question").focus();
    };
    this.open(memory.read("guideline") !== version, false);
  }

  open(yes, announced = true) {
    this.panel.hidden = !yes;
    this.button.setAttribute("aria-expanded", String(yes));
    if (!yes) this.memory.write("guideline", this.version);
    if (announced) say(yes ? "Guideline shown" : "Guideline hidden");
  }

  // A task was asked under a version; tell where that is another one than this page has.
  demand(version) {
    if (version !== this.version)
      banner("notice", `This task was asked under version ${version} of the guideline; you see version ${this.version}.`);
  }
}
