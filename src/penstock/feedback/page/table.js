// Tables of an administrator's page, made of nodes and texts.

import { make } from "./elements.js";

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
