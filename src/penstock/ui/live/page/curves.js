// The curves of each stage.

import { get, runPath } from "./api.js";
import { Choice, Grid } from "./chart.js";
import { make } from "./elements.js";

const CLOSELY = 2000; // points of a curve that is looked at closely

/** A switch that is kept for this browser. */
export function kept(name, label, initially, changed) {
  const stored = localStorage.getItem(`penstock-${name}`);
  const box = make("input", { type: "checkbox", checked: stored === null ? initially : stored === "1", onchange: () => {
    localStorage.setItem(`penstock-${name}`, box.checked ? "1" : "0");
    changed();
  } });
  return { box, label: make("label", { class: "switch" }, box, label) };
}

/** A metric of the server as a chart takes it. */
function chartOf(metric, log, alarms) {
  const raw = { steps: metric.steps, values: metric.values };
  const lines = metric.smooth ? [{ ...raw, faint: true }, { ...metric.smooth }] : [raw];
  return { ...metric, lines, log, alarms };
}

export function curvesPane(id) {
  const log = kept("log", "logarithmic", false, () => draw());
  const smooth = kept("smooth", "smoothed", true, () => { versions.clear(); update(); });
  const choice = new Choice(() => draw());
  const body = make("div");
  const versions = new Map(), answers = new Map(), grids = new Map(), shapes = new Map();
  let head = null;

  function draw() {
    for (const [stage, answer] of answers) {
      if (!grids.has(stage)) {
        grids.set(stage, new Grid(choice, () => { versions.delete(stage); update(); }));
        shapes.set(stage, make("section", { class: "stage-curves" }, make("h2", {}, stage), grids.get(stage).element));
      }
      const alarms = head.alarms.filter((one) => one.stage === stage).slice(0, 100);
      grids.get(stage).update(answer.curves.map((metric) => chartOf(metric, log.box.checked, alarms)));
    }
    const order = head.stages.map((stage) => shapes.get(stage.name)).filter(Boolean).reverse();  // what happens now comes first
    if (order.some((made, index) => body.children[index] !== made)) body.replaceChildren(...order);
    if (!order.length) body.replaceChildren(make("p", { class: "empty" }, "No metrics yet."));
  }

  async function update() {
    let changed = false;
    for (const stage of head.stages.filter((one) => one.done || one.took).reverse()) {
      if (versions.get(stage.name) === head.version) continue;
      const answer = await get(runPath(id, "/curves"), { stage: stage.name, smooth: smooth.box.checked ? 1 : 0,
        points: grids.get(stage.name)?.zoom ? CLOSELY : undefined, since: versions.get(stage.name) });
      versions.set(stage.name, answer.version);
      if (!answer.same) { answers.set(stage.name, answer); changed = true; draw(); }
    }
    if (changed || !body.children.length) draw();
  }

  return {
    element: make("div", {}, make("div", { class: "tools" }, choice.label, log.label, smooth.label, make("span", { class: "note" }, "Drag across a chart to zoom all of them; double-click to show all steps.")), body),
    async refresh(now) { head = now; await update(); },
  };
}
