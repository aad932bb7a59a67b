// Runs over each other; those that differ only in their seed become one band.

import { get } from "./api.js";
import { Choice, Grid } from "./chart.js";
import { kept } from "./curves.js";
import { make } from "./elements.js";

const COLORS = 8;

export function compareView(query) {
  const ids = (query.get("runs") ?? "").split(",").filter(Boolean);
  let stage = query.get("stage") ?? "", answer = null, painted = "";
  const hidden = new Set();
  const log = kept("log", "logarithmic", false, () => draw());
  const smooth = kept("smooth", "smoothed", true, () => { painted = ""; view.refresh(); });
  const bands = kept("bands", "seeds as a band", true, () => draw());
  const stages = make("select", { id: "stage", onchange: () => { stage = stages.value; painted = ""; address(); view.refresh(); } });
  const legend = make("ul", { class: "runs-legend" });
  const choice = new Choice(() => draw());
  const grid = new Grid(choice);
  const differences = make("details", {}, make("summary", {}, "How their specs differ"));
  const body = make("div", {}, make("div", { class: "tools" }, make("label", { for: "stage" }, "Stage"), stages, choice.label, log.label, smooth.label, bands.label), legend, grid.element, differences);

  function address() {
    history.replaceState(null, "", `#/compare?${new URLSearchParams({ runs: ids.join(","), stage })}`);
  }

  /** Runs of a band share a colour; everything else has its own. */
  function colours() {
    const found = new Map();
    let next = 0;
    for (const family of answer.families) {
      const together = bands.box.checked && family.length > 1;
      for (const id of family) { found.set(id, `c${next % COLORS}`); if (!together) next += 1; }
      if (together) next += 1;
    }
    return found;
  }

  function chartOf(metric, color, names) {
    const banded = new Set(), lines = [], areas = [];
    for (const band of bands.box.checked ? metric.bands : []) {
      const family = answer.families[band.family];
      if (family.some((id) => hidden.has(id))) continue;
      family.forEach((id) => banded.add(id));
      const at = color.get(family[0]);
      areas.push({ color: at, steps: band.steps, low: band.low, high: band.high });
      lines.push({ name: `median of ${band.runs} seeds`, color: at, steps: band.steps, values: band.median });
    }
    for (const [id, line] of Object.entries(metric.lines)) {
      if (!hidden.has(id)) lines.push({ name: names.get(id), color: color.get(id), faint: banded.has(id), ...line });
    }
    lines.sort((a, b) => Number(b.faint ?? false) - Number(a.faint ?? false));
    return { ...metric, lines, bands: areas, log: log.box.checked, last: "" };
  }

  function draw() {
    if (!answer) return;
    const color = colours(), names = new Map(answer.runs.map((run) => [run.id, run.name]));
    grid.update(answer.metrics.map((metric) => chartOf(metric, color, names)).filter((metric) => metric.lines.length));
    legend.replaceChildren(...answer.runs.map((run) => make("li", {}, make("label", {},
      make("input", { type: "checkbox", checked: !hidden.has(run.id), onchange: (event) => {
        if (event.target.checked) hidden.delete(run.id); else hidden.add(run.id);
        draw();
      } }), make("i", { class: `swatch ${color.get(run.id)}` }), make("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name),
      run.seed === null || run.seed === undefined ? "" : make("small", {}, ` seed ${run.seed}`)))));
    stages.replaceChildren(...answer.stages.map((name) => make("option", { value: name }, name)));
    stages.value = answer.stage;
    differences.hidden = !answer.differences.length;
    differences.replaceChildren(differences.firstChild, ...answer.differences.map((one) => make("div", {},
      make("h3", {}, `${names.get(one.run)} against ${names.get(one.from)}`),
      make("ul", {}, (one.lines.length ? one.lines : ["only the name differs"]).map((line) => make("li", {}, make("code", {}, line)))),
      one.left_out ? make("p", { class: "note" }, `${one.left_out} more`) : null)));
  }

  const view = {
    title: "Compare",
    ready: false,
    element: make("div", {}, make("h1", {}, "Compare"), ids.length ? body
      : make("p", { class: "empty" }, "Choose runs in the list first: ", make("a", { href: "#/" }, "all runs"), ".")),
    async refresh() {
      if (!ids.length) return "rests";
      answer = await get("compare", { runs: ids.join(","), stage, smooth: smooth.box.checked ? 1 : 0 });
      view.ready = true;
      stage = answer.stage;
      const now = JSON.stringify([answer.stage, answer.runs.map((run) => [run.id, run.step, run.time]), answer.complete]);
      if (now !== painted) { painted = now; draw(); }
      return !answer.complete ? "reading" : answer.runs.some((run) => run.state === "running") ? "moves" : "rests";
    },
  };
  return view;
}
