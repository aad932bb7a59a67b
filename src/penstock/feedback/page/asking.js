// What an administrator asks and knows: questions by upload, gold questions, the leaderboard.

import { ask, say } from "./dom.js";
import { find, make } from "./elements.js";
import { call } from "./service.js";
import { table } from "./tables.js";

const LARGEST = 2 << 20; // bytes of a file
const names = (field) => find(field).value.split(/[\s,]+/).filter(Boolean);
const start = (text, most = 90) => (text.length > most ? `${text.slice(0, most)}…` : text);

// What an answer of gold says; responses are counted from 1.
function answerOf({ answer, responses }) {
  if (!answer) return "–";
  if (answer.both_bad) return "both bad";
  if (answer.ranks) return `ranks ${answer.ranks.join(", ")}`;
  if (answer.scores) return Object.entries(answer.scores).map(([axis, values]) => `${axis} ${values.join(", ")}`).join("; ");
  if (answer.preference === 0) return "tie";
  return start(responses[answer.preference > 0 ? 0 : 1] ?? "", 60);
}

const question = ({ prompt }) => start(prompt.trim());

export class Asking {
  // `guarded(work)` tells what the server refuses; `changed()` is called when there are more questions.
  constructor(guarded, changed) {
    Object.assign(this, { guarded, changed });
    find("#ask").onsubmit = (event) => {
      event.preventDefault();
      const check = event.submitter?.value === "check";
      guarded(() => this.upload(check)).then((done) => done ?? (find("#asked").textContent = ""));
    };
    find("#agreed").onclick = () => guarded(() => this.agreed(false));
    find("#agreed-make").onclick = () => guarded(() => this.agreed(true));
    document.addEventListener("gold", () => guarded(() => this.gold()));
  }

  load() {
    return this.guarded(async () => {
      await this.gold();
      await this.leaders();
    });
  }

  async upload(check) {
    const [file] = find("#ask-file").files,
      said = find("#asked");
    if (file.size > LARGEST) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MiB; at most 2 can be uploaded. Use penstock feedback ask for larger files`);
    said.textContent = "Reading the file…";
    const body = { name: file.name, text: await file.text(), check, form: find("#ask-form").value, overlap: find("#ask-overlap").valueAsNumber };
    const [axes, to] = [names("#ask-axes"), names("#ask-to")];
    const found = await call("/api/admin/ask", { ...body, gold: find("#ask-gold").checked, ...(axes.length && { axes }), ...(to.length && { to }) });
    const count = (number, one, many) => `${number} ${number === 1 ? one : many}`;
    const parts = [check ? `The file holds ${count(found.questions, "question", "questions")}` : `${count(found.new, "new question", "new questions")} asked`];
    if (found.same) parts.push(count(found.same, "row is a repeat", "rows are repeats"));
    if (found.unused.length) parts.push(`columns not used: ${found.unused.join(", ")}`);
    said.textContent = `${parts.join("; ")}.`;
    if (!check) {
      find("#ask").reset();
      await this.changed();
      await this.gold();
    }
    return true;
  }

  async gold() {
    const { gold } = await call("/api/admin/gold");
    const row = (one) => {
      const stop = make("button", { type: "button", onclick: () => this.demote(one.task), "aria-label": `Stop using ${start(question(one), 40)}` }, "Stop using");
      return [one.demoted ? "off" : "", question(one), answerOf(one), one.demoted ? "no longer used" : "in use", one.demoted ? "" : stop];
    };
    const columns = [["Question", ""], ["Right answer", ""], ["State", ""], ["Actions", "acts"]];
    const none = "No gold questions yet. Upload some, or make one from an answer in the log.";
    find("#gold").replaceChildren(gold.length ? table("Gold questions", columns, gold.map(row)) : make("p", { class: "note" }, none));
  }

  async demote(task) {
    const reason = find("#demote-reason");
    reason.value = "";
    if ((await ask(find("#demote-dialog"))) !== "demote") return;
    await this.guarded(async () => {
      await call("/api/admin/gold", { task, demote: true, reason: reason.value.trim() });
      await this.gold();
      say("No longer used as gold");
    });
  }

  // Questions on which many trusted people agree, and with `promote` gold made of them.
  async agreed(promote) {
    const { pairs, promoted } = await call("/api/admin/gold/agreed", promote ? { promote } : {});
    const button = find("#agreed-make");
    button.hidden = promote || !pairs.length;
    button.textContent = pairs.length === 1 ? "Make this question gold" : `Make these ${pairs.length} questions gold`;
    if (promote) {
      say(`${promoted} made gold`);
      return this.gold();
    }
    const columns = [["Question", ""], ["Agreed answer", ""], ["Why", ""]];
    const none = make("p", { class: "note" }, "There are no such questions yet: five trusted people have to agree.");
    const rows = pairs.map((one) => ["", question(one), answerOf(one), one.why]);
    return find("#gold").replaceChildren(pairs.length ? table("Questions that people agree on", columns, rows) : none);
  }

  async leaders() {
    const { models } = await call("/api/admin/leaderboard");
    const columns = [["Model", ""], ["Points", "n"], ["95% interval", "n"], ["Won", "n"], ["Votes", "n"]];
    const whole = (value) => Math.round(value).toLocaleString("en").replace("-", "−");
    const rows = models.map(({ model, rating, interval, wins, votes }) => ["", model, whole(rating), interval.map(whole).join(" to "), `${Number(wins.toFixed(1))}`, String(votes)]);
    const none = make("p", { class: "note" }, "Appears when answers of two models have been compared.");
    find("#leaders").replaceChildren(models.length ? table("Leaderboard", columns, rows) : none);
  }
}
