// All runs of the folder, the newest first.

import { get } from "./api.js";
import { ago, el, whole } from "./dom.js";

const STATES = { finished: "finished", running: "running", silent: "silent", stopped: "stopped by a sentinel" };

export function overviewView() {
  const chosen = new Set();
  const filter = el("input", { type: "search", id: "filter", placeholder: "name", oninput: () => draw() });
  const compare = el("a", { class: "button", href: "#/compare" }, "Compare");
  const body = el("tbody");
  const root = el("p", { class: "headline" });
  const empty = el("p", { class: "empty", hidden: true });
  const table = el("table", { class: "runs" },
    el("caption", { class: "unseen" }, "Runs, the newest first"),
    el("thead", {}, el("tr", {}, ...["compare", "run", "state", "progress", "measured last", "alarms", "last event"].map((name) =>
      el("th", { scope: "col" }, name === "compare" ? el("span", { class: "unseen" }, name) : name)))), body);
  const rows = new Map();
  let known = [];

  function choose(id, on) {
    if (on) chosen.add(id); else chosen.delete(id);
    compare.href = `#/compare?runs=${[...chosen].map(encodeURIComponent).join(",")}`;
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
    compare.classList.toggle("strong", chosen.size > 1);
  }

  function row(run) {
    const box = el("input", { type: "checkbox", "aria-label": `compare ${run.name}`, checked: chosen.has(run.id),
      onchange: (event) => choose(run.id, event.target.checked) });
    const cells = ["how", "progress", "measured", "alarms", "when"].map((name) => el("td", { class: name }));
    const made = el("tr", {}, el("td", { class: "pick" }, box), el("th", { scope: "row" },
      el("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name), el("small", {})), ...cells);
    return { made, cells, note: made.querySelector("small") };
  }

  function fill({ cells: [state, progress, measured, alarms, when], note }, run, now) {
    const told = JSON.stringify(run);
    when.textContent = run.time === null ? "–" : ago(now - run.time);
    if (state.dataset.told === told) return;
    state.dataset.told = told;
    note.textContent = run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`;
    state.replaceChildren(el("span", { class: `state ${run.state}` }, STATES[run.state]));
    const at = run.stage ? `${run.stage}${run.stages > 1 ? ` (${run.place} of ${run.stages})` : ""}` : "no events yet";
    progress.replaceChildren(el("span", {}, at),
      run.steps ? el("progress", { max: run.steps, value: Math.min(run.step, run.steps), "aria-label": `steps of ${run.name}` }) : null,
      el("span", { class: "note" }, run.steps ? `${whole(run.step)} of ${whole(run.steps)} steps` : ""));
    measured.replaceChildren(...(run.headline ? [el("span", { class: "said" }, run.headline)] : run.values.map(({ label, value }) =>
      el("span", { class: "value" }, `${label} `, el("b", {}, value)))));
    alarms.textContent = run.alarms ? whole(run.alarms) : "";
    alarms.classList.toggle("trouble", run.alarms > 0);
  }

  function draw(now = Date.now() / 1000) {
    const wanted = filter.value.trim().toLowerCase();
    const shown = known.filter((run) => run.name.toLowerCase().includes(wanted));
    const order = shown.map((run) => {
      if (!rows.has(run.id)) rows.set(run.id, row(run));
      fill(rows.get(run.id), run, now);
      return rows.get(run.id).made;
    });
    if (order.length !== body.children.length || order.some((made, index) => body.children[index] !== made)) body.replaceChildren(...order);
    table.hidden = !shown.length;
    empty.hidden = shown.length > 0;
    empty.textContent = known.length ? `No run's name holds “${wanted}”.` : "No runs here yet. Start one: penstock train quickstart";
  }

  const view = {
    title: "Runs",
    ready: false,
    element: el("div", {}, el("h1", {}, "Runs"), root,
      el("div", { class: "tools" }, el("label", { for: "filter" }, "Filter"), filter, compare),
      el("div", { class: "scroll" }, table), empty),
    async refresh() {
      const answer = await get("runs");
      known = answer.runs;
      view.ready = true;
      root.textContent = `${whole(known.length)} in ${answer.root}`;
      draw(answer.now);
      return known.some((run) => run.state === "running") ? "moves" : "rests";
    },
  };
  return view;
}
