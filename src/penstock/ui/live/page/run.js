// One run: its head, and one of five panes below it.

import { get, runPath } from "./api.js";
import { curvesPane } from "./curves.js";
import { whole } from "./dom.js";
import { make } from "./elements.js";
import { samplesPane } from "./samples.js";
import { eventsPane, specPane } from "./story.js";
import { timePane } from "./time.js";

const PANES = { curves: ["Curves", curvesPane], samples: ["Samples", samplesPane], time: ["Time", timePane],
  events: ["Events", eventsPane], spec: ["Spec", specPane] };

export function runView(id, chosen, query) {
  const title = make("h1", {}, id);
  const headline = make("p", { class: "headline" });
  const facts = make("dl", { class: "facts" });
  const stages = make("div", { class: "stages" });
  const links = Object.entries(PANES).map(([name, [label]]) =>
    make("a", { href: `#/run/${encodeURIComponent(id)}/${name}`, "data-pane": name }, label));
  const place = make("div", { class: "pane" });
  let pane = null, name = "", head = null;

  function open(wanted, given) {
    name = PANES[wanted] ? wanted : "curves";
    pane?.close?.();
    pane = PANES[name][1](id, given);
    place.replaceChildren(pane.element);
    for (const link of links) {
      if (link.dataset.pane === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  function fill() {
    title.textContent = head.name;
    headline.textContent = head.headline;
    const known = [["state", head.state], ["sentinels", head.sentinels], ["seed", head.seed], ["folder", head.folder]];
    if (!head.complete) known.push(["log read", `${Math.floor(head.share * 100)}%`]);
    facts.replaceChildren(...known.filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .map(([label, value]) => make("div", {}, make("dt", {}, label), make("dd", {}, String(value)))));
    stages.replaceChildren(...head.stages.map((stage, index) => make("div", { class: "stage" },
      make("span", { class: "order" }, String(index + 1)), make("span", { class: "name" }, stage.name), make("span", { class: "took" }, stage.took),
      make("span", { class: "steps" }, `${whole(stage.done)}${stage.steps ? ` of ${whole(stage.steps)}` : ""} steps`),
      stage.steps ? make("progress", { max: stage.steps, value: Math.min(stage.done, stage.steps), "aria-label": `steps of ${stage.name}` }) : null,
      ...stage.gains.slice(0, 3).map((gain) => make("span", { class: "gain" }, `${gain.label} `, make("b", {}, `${gain.before} → ${gain.after}`))))));
  }

  const view = {
    title: id,
    ready: false,
    element: make("div", {}, title, headline, facts, stages, make("nav", { class: "panes", "aria-label": "Panes of this run" }, ...links), place),
    /** Another pane of the same run keeps the head, and where one was on the page. */
    stays({ parts, query: given }) {
      if (parts[0] !== "run" || parts[1] !== id) return false;
      const wanted = parts[2] ?? "curves";
      if (wanted !== name) { open(wanted, given); if (head) pane.refresh(head); }
      else pane.moved?.(given);
      return true;
    },
    async refresh() {
      const answer = await get(runPath(id), { since: head?.version });
      if (!answer.same) { head = answer; fill(); }
      view.ready = true;
      await pane.refresh(head);
      return !head.complete ? "reading" : head.state === "running" ? "moves" : "rests";
    },
    keys: (event) => pane.keys?.(event),
    close: () => pane.close?.(),
  };
  open(chosen, query);
  return view;
}
