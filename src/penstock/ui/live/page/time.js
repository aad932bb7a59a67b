// Where the time goes: lanes of the roles, their work and idling, the lag of trained tokens.

import { get, runPath } from "./api.js";
import { el, svg, whole } from "./dom.js";

const AGAIN_MS = 5000;

function lanes(picture) {
  const drawn = svg("svg", { viewBox: `0 0 1000 ${picture.height}`, role: "img", "aria-label": `what each role did over ${picture.title}` },
    picture.ticks.flatMap((tick) => [svg("line", { class: "grid", x1: tick.at, x2: tick.at, y1: 0, y2: picture.height - 22 }),
      svg("text", { class: "x", x: tick.at, y: picture.height - 9 }, tick.label)]),
    picture.lanes.flatMap((lane) => [svg("text", { class: "y", x: 88, y: lane.top + 16 }, lane.role),
      ...lane.lives.map(([x, width]) => svg("rect", { class: "life", x, y: lane.top, width, height: 24 })),
      ...lane.bands.map((band) => svg("path", { class: `kind ${band.kind}`, d: band.path })),
      ...lane.updates.map((x) => svg("path", { class: "kind update", d: `M${x} ${lane.top + 1}l-3 -5h6z` }))]));
  const legend = el("span", { class: "legend" }, [...picture.kinds, "idle"].map((kind) => el("span", {}, el("i", { class: `kind ${kind}` }), kind)));
  return el("figure", { class: "lanes" }, el("figcaption", {}, el("span", { class: "label" }, picture.title), legend), el("div", { class: "scroll" }, drawn));
}

function roles(rows) {
  return el("div", { class: "scroll" }, el("table", { class: "timeline" }, el("caption", {}, "Roles"),
    el("thead", {}, el("tr", {}, ["role", "alive", "work", "of which"].map((name) => el("th", { scope: "col", class: name === "alive" || name === "work" ? "n" : null }, name)))),
    el("tbody", {}, rows.map(([role, alive, work, kinds]) => el("tr", {}, el("th", { scope: "row" }, role), el("td", { class: "n" }, alive),
      el("td", { class: "n" }, work), el("td", {}, kinds))))));
}

function histogram(found) {
  const wide = 26, tallest = Math.max(...found.lags.map((one) => one.share)), most = Math.max(...found.lags.map((one) => one.lag));
  const bars = found.lags.map(({ lag, tokens, share }) => svg("g", {},
    svg("rect", { class: "bar", x: 8 + lag * (wide + 6), y: 96 - (80 * share) / tallest, width: wide, height: Math.max(1, (80 * share) / tallest) },
      svg("title", {}, `lag ${lag}: ${whole(tokens)} tokens`)),
    svg("text", { class: "x", x: 8 + lag * (wide + 6) + wide / 2, y: 90 - (80 * share) / tallest }, `${(share * 100).toFixed(share < 0.1 ? 1 : 0)}%`),
    svg("text", { class: "x", x: 8 + lag * (wide + 6) + wide / 2, y: 110 }, String(lag))));
  const said = found.lags.map(({ lag, share }) => `lag ${lag}: ${(share * 100).toFixed(1)}%`).join(", ");
  const width = Math.max(120, 16 + (most + 1) * (wide + 6));
  return el("figure", { class: "lanes lag" }, el("figcaption", {}, `Lag of trained tokens in versions, mean ${found.mean_lag.toFixed(2)}`),
    el("div", { class: "scroll" }, svg("svg", { viewBox: `0 0 ${width} 116`, width, height: 116, role: "img", "aria-label": said }, bars)));
}

export function timePane(id) {
  const element = el("div");
  let version = "", asked = 0;
  return {
    element,
    async refresh(head) {
      if (version === head.version || Date.now() - asked < AGAIN_MS) return;
      [version, asked] = [head.version, Date.now()];
      const found = await get(runPath(id, "/time"));
      element.replaceChildren(...(found.pictures.length ? [
        ...found.pictures.map(lanes),
        found.lags.length && Math.max(...found.lags.map((one) => one.lag)) < 200 ? histogram(found) : "",
        roles(found.account.roles),
        el("dl", { class: "pairs" }, found.account.facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      ] : [el("p", { class: "empty" }, "Nothing is recorded yet of what the roles do.")]));
    },
  };
}
