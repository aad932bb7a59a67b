// All runs of the folder, newest first.

import { get } from "./api.js";
import { ago, whole } from "./dom.js";
import { make } from "./elements.js";

const STATES = { finished: "finished", running: "running", silent: "no news", stopped: "stopped by a sentinel" };

export function overviewView() {
  const chosen = new Set();
  const filter = make("input", { type: "search", id: "filter", placeholder: "name", oninput: () => draw() });
  const compare = make("a", { class: "button", href: "#/compare" }, "Compare");
  const body = make("tbody");
  const root = make("p", { class: "headline" });
  const empty = make("p", { class: "empty", hidden: true });
  const table = make("table", { class: "runs" },
    make("caption", { class: "unseen" }, "Runs, newest first"),
    make("thead", {}, make("tr", {}, ...["compare", "run", "state", "progress", "latest values", "alarms", "last event"].map((name) =>
      make("th", { scope: "col" }, name === "compare" ? make("span", { class: "unseen" }, name) : name)))), body);
  const rows = new Map();
  let known = [];

  function choose(id, on) {
    if (on) chosen.add(id); else chosen.delete(id);
    compare.href = `#/compare?runs=${[...chosen].map(encodeURIComponent).join(",")}`;
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
    compare.classList.toggle("strong", chosen.size > 1);
  }

  function row(run) {
    const box = make("input", { type: "checkbox", "aria-label": `compare ${run.name}`, checked: chosen.has(run.id),
      onchange: (event) => choose(run.id, event.target.checked) });
    const cells = ["how", "progress", "measured", "alarms", "when"].map((name) => make("td", { class: name }));
    const made = make("tr", {}, make("td", { class: "pick" }, box), make("th", { scope: "row" },
      make("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name), make("small", {})), ...cells);
    return { made, cells, note: made.querySelector("small") };
  }

  function fill({ cells: [state, progress, measured, alarms, when], note }, run, now) {
    const content = JSON.stringify(run);
    when.textContent = run.time === null ? "–" : ago(now - run.time);
    if (state.dataset.content === content) return;
    state.dataset.content = content;
    note.textContent = run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`;
    state.replaceChildren(make("span", { class: `state ${run.state}` }, STATES[run.state]));
    const at = run.stage ? `${run.stage}${run.stages > 1 ? ` (${run.place} of ${run.stages})` : ""}` : "not started";
    const steps = run.steps ? `${whole(run.step)} of ${whole(run.steps)} steps` : run.step ? `step ${whole(run.step)}` : "no steps yet";
    const bar = run.steps ? [make("progress", { max: run.steps, value: Math.min(run.step, run.steps), "aria-label": `steps of ${run.name}` })] : [];
    progress.replaceChildren(make("span", {}, at), ...bar, make("span", { class: "note" }, steps));
    measured.replaceChildren(...(run.headline ? [make("span", { class: "said" }, run.headline)] : run.values.map(({ label, value }) =>
      make("span", { class: "value" }, `${label} `, make("b", {}, value)))));
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
    empty.textContent = known.length ? `No run name contains “${wanted}”.` : "No runs here yet. Start one: penstock train quickstart";
  }

  const view = {
    title: "Runs",
    ready: false,
    element: make("div", {}, make("h1", {}, "Runs"), root,
      make("div", { class: "tools" }, make("label", { for: "filter" }, "Filter"), filter, compare),
      make("div", { class: "scroll" }, table), empty),
    async refresh() {
      const answer = await get("runs");
      known = answer.runs;
      view.ready = true;
      root.textContent = `${whole(known.length)} ${known.length === 1 ? "run" : "runs"} in ${answer.root}`;
      draw(answer.now);
      return known.some((run) => run.state === "running") ? "moves" : "rests";
    },
  };
  return view;
}
