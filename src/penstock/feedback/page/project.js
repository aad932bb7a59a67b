// What is set for the project of the page, its members, and new projects.

import { say } from "./dom.js";
import { all, find, make } from "./elements.js";
import { call } from "./service.js";

const POLICY = ["gold_share", "repeat_share", "qualify", "qualified", "quota"];
const names = (field) => find(field).value.split(/[\s,]+/).filter(Boolean);

export class ProjectPart {
  // `guarded(work)` tells what the server refuses; `changed()` is called when members have changed.
  constructor(guarded, changed) {
    Object.assign(this, { guarded, changed, members: [] });
    find("#project-set").onsubmit = (event) => {
      event.preventDefault();
      guarded(() => this.save());
    };
    find("#project-new").onsubmit = (event) => {
      event.preventDefault();
      guarded(async () => {
        const { name } = await call("/api/admin/project", { new: find("#project-name").value.trim() });
        location.assign(`/admin?project=${encodeURIComponent(name)}`);
      });
    };
    find("#member-add").onsubmit = (event) => {
      event.preventDefault();
      guarded(() => this.member(find("#member-name").value, true));
    };
  }

  async load() {
    const found = await call("/api/admin/project");
    this.members = found.members;
    this.before = found;
    find("#project-title").textContent = found.name;
    for (const box of all("#project-forms input")) box.checked = found.forms.includes(box.value);
    find("#project-overlap").value = find("#ask-overlap").value = found.overlap;
    find("#project-axes").value = found.axes.join(", ");
    [find("#project-low").value, find("#project-high").value] = found.scale;
    find("#project-guideline").value = found.guidelines[found.guideline] ?? "";
    find("#project-version").value = found.guideline;
    find("#project-versions").replaceChildren(...Object.keys(found.guidelines).map((version) => make("option", { value: version })));
    for (const name of POLICY) find(`#project-${name}`).value = found.policy[name] ?? "";
    find("#project-pause").value = String(found.policy.pause ?? "");
  }

  async save() {
    const policy = Object.fromEntries(POLICY.filter((name) => find(`#project-${name}`).value !== "").map((name) => [name, find(`#project-${name}`).valueAsNumber]));
    const pause = find("#project-pause").value;
    const [text, version] = [find("#project-guideline").value, find("#project-version").value.trim()];
    const same = text === (this.before.guidelines[this.before.guideline] ?? "");
    await call("/api/admin/project", {
      forms: all("#project-forms input").filter((box) => box.checked).map((box) => box.value),
      overlap: find("#project-overlap").valueAsNumber,
      axes: names("#project-axes"),
      scale: [find("#project-low").valueAsNumber, find("#project-high").valueAsNumber],
      policy: { ...policy, ...(pause && { pause: pause === "true" }) },
      version, // alone: the text of an earlier version again
      ...(!same && text.trim() && { guideline: text }),
    });
    await this.load();
    say("Project saved");
    find("#project-said").textContent = "Saved. People who have the page open see a new guideline when they load it again.";
  }

  async member(name, yes) {
    await call("/api/admin/project", yes ? { add: [name] } : { remove: [name] });
    await this.load();
    await this.changed();
    say(`${name} is ${yes ? "now" : "no longer"} a member`);
  }

  // Who is enrolled and could be a member.
  offer(accounts) {
    const others = accounts.filter(({ name, nature, enabled }) => nature === "human" && enabled && !this.members.includes(name));
    find("#member-name").replaceChildren(...others.map(({ name }) => make("option", {}, name)));
    find("#member-add").hidden = !others.length;
  }
}
