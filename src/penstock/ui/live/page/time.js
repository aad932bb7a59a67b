// Where the time goes: lanes of the roles, their work and idling, the lag of trained tokens.

import { get, runPath } from "./api.js";
import { scrolling, whole } from "./dom.js";
import { make, svg } from "./elements.js";

const AGAIN_MS = 5000;

function lanes(picture) {
  const drawn = svg("svg", { viewBox: `0 0 1000 ${picture.height}`, role: "img", "aria-label": `what each role did over ${picture.title}` },
    picture.ticks.flatMap((tick) => [svg("line", { class: "grid", x1: tick.at, x2: tick.at, y1: 0, y2: picture.height - 22 }),
      svg("text", { class: "x", x: tick.at, y: picture.height - 9 }, tick.label)]),
    picture.lanes.flatMap((lane) => [svg("text", { class: "y", x: 88, y: lane.top + 16 }, lane.role),
      ...lane.lives.map(([x, width]) => svg("rect", { class: "life", x, y: lane.top, width, height: 24 })),
      ...lane.bands.map((band) => svg("path", { class: `kind ${band.kind}`, d: band.path })),
      ...lane.updates.map((x) => svg("path", { class: "kind update", d: `M${x} ${lane.top + 1}l-3 -5h6z` }))]));
  const legend = make("span", { class: "legend" }, [...picture.kinds, "idle"].map((kind) => make("span", {}, make("i", { class: `kind ${kind}` }), kind)));
  return make("figure", { class: "lanes" }, make("figcaption", {}, make("span", { class: "label" }, picture.title), legend), scrolling(picture.title, drawn));
}

function roles(rows) {
  return scrolling("Roles", make("table", { class: "timeline" }, make("caption", {}, "Roles"),
    make("thead", {}, make("tr", {}, ["role", "alive", "work", "of which"].map((name) => make("th", { scope: "col", class: name === "alive" || name === "work" ? "n" : null }, name)))),
    make("tbody", {}, rows.map(([role, alive, work, kinds]) => make("tr", {}, make("th", { scope: "row" }, role), make("td", { class: "n" }, alive),
      make("td", { class: "n" }, work), make("td", {}, kinds))))));
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
  return make("figure", { class: "lanes lag" }, make("figcaption", {}, `Lag of trained tokens in versions, mean ${found.mean_lag.toFixed(2)}`),
    scrolling("Lag of trained tokens", svg("svg", { viewBox: `0 0 ${width} 116`, width, height: 116, role: "img", "aria-label": said }, bars)));
}

export function timePane(id) {
  const element = make("div");
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
        make("dl", { class: "pairs" }, found.account.facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
      ] : [make("p", { class: "empty" }, "No timing has been recorded yet.")]));
    },
  };
}
