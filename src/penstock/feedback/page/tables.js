// Tables and small drawings of an administrator's page.

import { make, svg } from "./elements.js";

// Tables of an administrator's page, made of nodes and texts.


// columns: [heading, classes]; rows: [class, first cell as the row's heading, other cells…]. A cell is a text or a node.
export function table(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map(([heading, kind]) => make("th", { scope: "col", class: kind }, heading)));
  const body = rows.map(([kind, ...cells]) =>
    make(
      "tr",
      { class: kind || null },
      ...cells.map((cell, i) => make(i ? "td" : "th", { class: columns[i][1], scope: i ? null : "row" }, ...[cell].flat())),
    ),
  );
  return make("table", {}, make("caption", { class: "unseen" }, caption), make("thead", {}, head), make("tbody", {}, ...body));
}

export const percent = (value) => (value === null ? "–" : `${Math.round(value * 100)}%`);
export const fixed = (value, digits) =>
  value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

// {value, interval, right, of} as a percentage with its interval and count below; null as a dash.
export function share(of) {
  if (!of) return "–";
  const ends = of.interval ? `${Math.round(of.interval[0] * 100)}–${Math.round(of.interval[1] * 100)}%, ` : "";
  return [percent(of.value), make("small", {}, `${ends}${of.right} of ${of.of}`)];
}

// Small drawings: bars of days, and an estimate with its interval.


const WIDTH = 640,
  HEIGHT = 170,
  LEFT = 44,
  BOTTOM = 22,
  TOP = 8;
const DAY = 86400000;

// The next number of 1, 2 or 5 times a power of ten.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= value);
}

// Days without a vote are shown as such.
function filled(days) {
  const counts = new Map(days.map(({ day, votes }) => [day, votes])),
    all = [];
  if (!days.length) return all;
  for (let time = Date.parse(days[0].day); time <= Date.parse(days.at(-1).day); time += DAY) {
    const day = new Date(time).toISOString().slice(0, 10);
    all.push({ day, votes: counts.get(day) ?? 0 });
  }
  return all.slice(-60);
}

// days: [{day: "2026-11-22", votes}]
export function dayBars(days) {
  const all = filled(days),
    most = nice(Math.max(1, ...all.map(({ votes }) => votes)));
  const total = all.reduce((sum, { votes }) => sum + votes, 0);
  const y = (votes) => HEIGHT - BOTTOM - (votes / most) * (HEIGHT - BOTTOM - TOP),
    step = (WIDTH - LEFT) / Math.max(all.length, 14);
  const drawing = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "img",
    "aria-label": `${total} votes on ${all.length} days, at most ${Math.max(0, ...all.map(({ votes }) => votes))} a day`,
  });
  for (const value of [0, most / 2, most]) {
    if (!Number.isInteger(value)) continue;
    drawing.append(
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }),
      svg("text", { class: "y", x: LEFT - 8, y: y(value) + 4 }, value.toLocaleString("en")),
    );
  }
  const every = Math.ceil(all.length / 7);
  all.forEach(({ day, votes }, i) => {
    const x = LEFT + i * step;
    drawing.append(
      svg(
        "rect",
        {
          class: "bar",
          x: x + step * 0.12,
          y: y(votes),
          width: step * 0.76,
          height: HEIGHT - BOTTOM - y(votes),
          rx: Math.min(2, step * 0.2),
        },
        svg("title", {}, `${day}: ${votes}`),
      ),
    );
    if (i % every === 0)
      drawing.append(svg("text", { class: "x", x: Math.max(x + step / 2, LEFT + 14), y: HEIGHT - 6 }, day.slice(5)));
  });
  return drawing;
}

// An estimate between low and high with its interval.
export function band(value, [from, to], low, high) {
  const x = (at) => 6 + ((Math.min(Math.max(at, low), high) - low) / (high - low)) * 228;
  return svg(
    "svg",
    { viewBox: "0 0 240 18", "aria-hidden": "true" },
    svg("line", { class: "grid", x1: 6, x2: 234, y1: 9, y2: 9 }),
    svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 1, y2: 17 }),
    svg("line", { class: "band", x1: x(from), x2: x(to), y1: 9, y2: 9 }),
    svg("circle", { class: "point", cx: x(value), cy: 9, r: 4 }),
  );
}
