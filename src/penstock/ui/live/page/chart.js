// A chart: lines over steps, bands of seeds, marks where a value was not finite. It is drawn once it can be seen.

import { tip, whole, written } from "./dom.js";
import { make, svg } from "./elements.js";

const WIDTH = 320, HEIGHT = 150, LEFT = 46, RIGHT = 312, TOP = 10, BOTTOM = 126;
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.chart.visible(entry.isIntersecting);
}, { rootMargin: "300px" });

/** Round numbers within [low, high], about `count` of them. */
export function niceTicks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= (span / count) * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index <= Math.floor(high / step + 1e-9); index += 1) ticks.push(index * step);
  return ticks;
}

/** Powers of ten within [low, high], where there are few also their halves and fifths. */
export function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of high / low < 100 ? [1, 2, 5] : [1]) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  const every = Math.ceil(ticks.length / 6);
  return ticks.length ? ticks.filter((_, index) => index % every === 0) : [low, high];
}

/** Texts of ticks with as many decimals as the closest two need; thousands as k, millions as M, shares in percent. */
export function tickLabels(ticks, metric = {}) {
  const largest = Math.max(...ticks.map(Math.abs));
  const [scale, unit] = metric.share ? [0.01, "%"] : largest >= 1e6 ? [1e6, "M"] : largest >= 1e4 ? [1e3, "k"] : [1, ""];
  if (!metric.share && largest > 0 && largest < 1e-3) return ticks.map((tick) => (tick === 0 ? "0" : tick.toExponential(0).replaceAll("-", "−")));
  const gap = Math.min(...ticks.slice(1).map((tick, index) => Math.abs(tick - ticks[index])), largest || 1) / scale;
  const decimals = Math.min(6, Math.max(0, -Math.floor(Math.log10(gap) + 1e-9)));
  return ticks.map((tick) => (tick === 0 ? "0" : `${(tick / scale).toFixed(decimals)}${unit}`.replace("-", "−")));
}

/** Where the values lie, with a little air. */
function limits(values, log) {
  const good = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!good.length) return log ? [0.1, 1] : [0, 1];
  let low = Infinity, high = -Infinity;
  for (const value of good) { if (value < low) low = value; if (value > high) high = value; }
  if (log) return low === high ? [low / 2, high * 2] : [low, high];
  const air = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low < high * 0.25 && high > low ? 0 : low - air, high + air];
}

class Chart {
  constructor() {
    this.caption = make("span", { class: "label" });
    this.last = make("span", { class: "last" });
    this.range = make("p", { class: "range" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0" });
    this.element = make("figure", { class: "curve" }, make("figcaption", {}, this.caption, this.last), this.drawing, this.range);
    this.element.chart = this;
    this.shown = false;
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.leave());
    this.drawing.addEventListener("blur", () => this.leave());
    this.drawing.addEventListener("keydown", (event) => this.key(event));
    seen.observe(this.element);
  }

  visible(shown) {
    this.shown = shown;
    if (shown && this.dirty) this.draw();
  }

  /** `data`: a metric with `lines` [{name, color, steps, values, faint}], `bands` [{color, steps, low, high}], `bad`, `alarms`, `log`. */
  update(data) {
    this.data = data;
    this.caption.textContent = data.label;
    this.caption.title = data.name;
    this.last.textContent = data.last ?? "";
    this.drawing.setAttribute("aria-label", `${data.label}${data.last ? `, last ${data.last}` : ""}; arrow keys read values`);
    this.dirty = true;
    if (this.shown) this.draw();
  }

  draw() {
    this.dirty = false;
    const { lines, bands = [], bad = [], alarms = [], log } = this.data;
    const steps = [...lines, ...bands].flatMap((line) => [line.steps[0], line.steps.at(-1)]).filter((step) => step !== undefined);
    const first = Math.min(...steps, ...bad), final = Math.max(...steps, ...bad);
    const [low, high] = limits([...lines.map((line) => line.values), ...bands.map((b) => b.low), ...bands.map((b) => b.high)].flat(), log);
    const scale = log ? Math.log : (value) => value;
    this.x = (step) => LEFT + (RIGHT - LEFT) * (final > first ? (step - first) / (final - first) : 0.5);
    this.y = (value) => BOTTOM - (BOTTOM - TOP) * (scale(value) - scale(low)) / (scale(high) - scale(low));
    this.cursor = svg("g", { class: "cursor", visibility: "hidden" }, svg("line", { y1: TOP, y2: BOTTOM }));
    this.drawing.replaceChildren(
      ...this.axes(first, final, low, high),
      ...bands.map((band) => svg("path", { class: `band ${band.color}`, d: this.area(band) })),
      ...alarms.filter(({ step }) => step >= first && step <= final).map((alarm) => svg("line", {
        class: `alarm ${alarm.fatal ? "fatal" : ""}`, x1: this.x(alarm.step), x2: this.x(alarm.step), y1: TOP, y2: BOTTOM,
      }, svg("title", {}, `${alarm.name}, step ${alarm.step}: ${alarm.message}`))),
      ...bad.map((step) => svg("line", { class: "bad", x1: this.x(step), x2: this.x(step), y1: BOTTOM - 8, y2: BOTTOM })),
      ...lines.map((line) => svg("path", { class: `line ${line.color ?? ""} ${line.faint ? "faint" : ""}`, d: this.path(line.steps, line.values) })),
      ...lines.filter((line) => line.steps.length <= 40 && !line.faint).flatMap((line) => this.dots(line)),
      this.cursor,
    );
    this.describe(bad);
  }

  axes(first, final, low, high) {
    const { log } = this.data;
    const made = [], rows = log ? logTicks(low, high) : niceTicks(low, high, 5);
    const texts = log ? rows.flatMap((tick) => tickLabels([tick], this.data)) : tickLabels(rows, this.data);
    rows.forEach((tick, index) => {
      made.push(svg("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: this.y(tick), y2: this.y(tick) }));
      made.push(svg("text", { class: "y", x: 40, y: this.y(tick) + 3.5 }, texts[index]));
    });
    made.push(svg("line", { class: "axis", x1: LEFT, x2: RIGHT, y1: BOTTOM, y2: BOTTOM }));
    const columns = niceTicks(first, final, 4).filter(Number.isInteger), names = tickLabels(columns);
    columns.forEach((tick, index) => {
      made.push(svg("line", { class: "axis", x1: this.x(tick), x2: this.x(tick), y1: BOTTOM, y2: BOTTOM + 3 }));
      made.push(svg("text", { class: "x", x: this.x(tick), y: BOTTOM + 15 }, names[index]));
    });
    return made;
  }

  drawable(value) {
    return Number.isFinite(value) && (!this.data.log || value > 0);
  }

  path(steps, values) {
    let pen = "M";
    return values.map((value, index) => {
      if (!this.drawable(value)) { pen = "M"; return ""; }
      const part = `${pen}${this.x(steps[index]).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = "L";
      return part;
    }).join("");
  }

  area({ steps, low, high }) {
    const kept = steps.map((_, index) => index).filter((index) => this.drawable(low[index]) && this.drawable(high[index]));
    const place = (index, values) => `${this.x(steps[index]).toFixed(1)} ${this.y(values[index]).toFixed(1)}`;
    const there = kept.map((index) => place(index, high)), back = kept.reverse().map((index) => place(index, low));
    return there.length ? `M${[...there, ...back].join("L")}Z` : "";
  }

  dots(line) {
    return line.values.map((value, index) => this.drawable(value) &&
      svg("circle", { class: `dot ${line.color ?? ""}`, cx: this.x(line.steps[index]), cy: this.y(value), r: 2.1 })).filter(Boolean);
  }

  describe(bad) {
    const count = this.data.bad_count ?? bad.length;
    const all = this.data.lines.flatMap((line) => line.values);
    const left = this.data.log ? all.filter((value) => !(value > 0)).length : 0;
    let low = Infinity, high = -Infinity;
    for (const value of all) { if (value < low) low = value; if (value > high) high = value; }
    this.range.replaceChildren(
      make("span", {}, all.length ? `${written(low, { share: this.data.share })} to ${written(high, this.data)}` : "no finite value"),
      make("span", { class: "trouble" }, [count ? `${whole(count)} not finite` : "", left ? "values ≤ 0 not drawn" : ""].filter(Boolean).join(", ")),
    );
  }

  point(event) {
    const box = this.drawing.getBoundingClientRect();
    this.at(((event.clientX - box.left) / box.width) * WIDTH);
  }

  /** The cursor at a place, moved to the nearest step that is drawn. */
  at(x) {
    const base = this.data?.lines.find((line) => line.steps.length && !line.faint) ?? this.data?.lines[0];
    if (!base?.steps.length || !this.x) return;
    this.step = nearest(base.steps, (step) => this.x(step), x);
    const said = [], line = this.cursor.firstChild, place = this.x(this.step);
    this.cursor.replaceChildren(line);
    line.setAttribute("x1", place);
    line.setAttribute("x2", place);
    for (const one of this.data.lines) {
      const index = one.faint && this.data.lines.length === 2 ? -1 : one.steps.indexOf(this.step);
      if (index < 0 || !this.drawable(one.values[index])) continue;
      this.cursor.append(svg("circle", { class: one.color ?? "", cx: place, cy: this.y(one.values[index]), r: 3.2 }));
      said.push(`${one.name ? `${one.name}: ` : ""}${written(one.values[index], this.data)}`);
    }
    this.cursor.setAttribute("visibility", "visible");
    const box = this.drawing.getBoundingClientRect();
    tip([`step ${whole(this.step)}`, ...said.slice(0, 12)], box.left + (place / WIDTH) * box.width, box.top + 40);
  }

  key(event) {
    const base = this.data?.lines.find((line) => line.steps.length && !line.faint);
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!base || move === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const now = this.step === undefined ? base.steps.length - 1 - Math.sign(move) : base.steps.indexOf(this.step);
    const next = Math.max(0, Math.min(base.steps.length - 1, now + move));
    this.at(this.x(base.steps[next]));
  }

  leave() {
    this.cursor?.setAttribute("visibility", "hidden");
    tip(null);
  }
}

/** The step whose place is nearest to x. */
function nearest(steps, place, x) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (place(steps[middle]) < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - place(steps[low - 1]) < place(steps[low]) - x ? steps[low - 1] : steps[low];
}

/** Charts of metrics in one grid, each group's first under its heading; those that were there before only get new data. */
export class Grid {
  constructor() {
    this.element = make("div", { class: "curves" });
    this.charts = new Map();
  }

  update(metrics) {
    const cells = metrics.map((metric, index) => {
      if (!this.charts.has(metric.name)) this.charts.set(metric.name, new Chart());
      const chart = this.charts.get(metric.name);
      chart.update(metric);
      const heading = metrics[index - 1]?.group === metric.group ? "" : metric.group;
      return [heading, chart.element];
    });
    const shape = JSON.stringify(metrics.map((metric) => metric.name));
    if (shape === this.shape) return;
    this.shape = shape;
    this.element.replaceChildren(...cells.map(([heading, element]) => make("div", { class: "cell" }, heading ? make("h3", {}, heading) : null, element)));
  }
}
