// Charts of metrics: lines over steps, bands of seeds, marks where a value was not finite; search, pins, and a zoom that all share.

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
  if (low === 0 && high === 0) return [0, 1];
  const air = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low < high * 0.25 && high > low ? 0 : low - air, high + air];
}

class Chart {
  constructor(grid) {
    this.grid = grid;
    this.pin = make("button", { type: "button", class: "plain pin", onclick: () => grid.choice.pin(this.data.name) });
    this.caption = make("span", { class: "label" });
    this.last = make("span", { class: "last" });
    this.range = make("p", { class: "range" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0" });
    this.element = make("figure", { class: "curve" }, make("figcaption", {}, this.caption, this.last, this.pin), this.drawing, this.range);
    this.element.chart = this;
    this.shown = false;
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.leave());
    this.drawing.addEventListener("pointerdown", (event) => this.grab(event));
    this.drawing.addEventListener("pointerup", (event) => this.release(event));
    this.drawing.addEventListener("dblclick", () => this.grid.zoomTo(null));
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
    this.drawing.setAttribute("aria-label", `${data.label}${data.last ? `, last ${data.last}` : ""}; arrow keys read values, plus and minus zoom`);
    const pinned = this.grid.choice.pinned.has(data.name);
    this.pin.textContent = pinned ? "★" : "☆";
    this.pin.setAttribute("aria-pressed", String(pinned));
    this.pin.setAttribute("aria-label", `Pin ${data.label}`);
    this.dirty = true;
    if (this.shown) this.draw();
  }

  draw() {
    this.dirty = false;
    const { zoom } = this.grid, log = this.data.log, within = (step) => !zoom || (step >= zoom[0] && step <= zoom[1]);
    const cut = (line, ...names) => {
      const kept = line.steps.flatMap((step, index) => (within(step) ? [index] : []));
      return { ...line, ...Object.fromEntries(["steps", ...names].map((name) => [name, kept.map((index) => line[name][index])])) };
    };
    const lines = (this.lines = this.data.lines.map((line) => cut(line, "values"))), bands = (this.data.bands ?? []).map((band) => cut(band, "low", "high"));
    const bad = (this.data.bad ?? []).filter(within), alarms = this.data.alarms ?? [];
    const steps = [...lines, ...bands].flatMap((line) => [line.steps[0], line.steps.at(-1)]).filter((step) => step !== undefined);
    const [first, final] = (this.span = zoom ?? [Math.min(...steps, ...bad), Math.max(...steps, ...bad)]);
    const [low, high] = limits([...lines.map((line) => line.values), ...bands.map((b) => b.low), ...bands.map((b) => b.high)].flat(), log);
    const scale = log ? Math.log : (value) => value;
    this.x = (step) => LEFT + (RIGHT - LEFT) * (final > first ? (step - first) / (final - first) : 0.5);
    this.y = (value) => BOTTOM - (BOTTOM - TOP) * (scale(value) - scale(low)) / (scale(high) - scale(low));
    this.cursor = svg("g", { class: "cursor", visibility: "hidden" }, svg("line", { y1: TOP, y2: BOTTOM }));
    this.brush = svg("rect", { class: "brush", visibility: "hidden", y: TOP, height: BOTTOM - TOP });
    this.drawing.replaceChildren(
      ...this.axes(first, final, low, high),
      ...bands.map((band) => svg("path", { class: `band ${band.color}`, d: this.area(band) })),
      ...alarms.filter(({ step }) => step >= first && step <= final).map((alarm) => svg("line", {
        class: `alarm ${alarm.fatal ? "fatal" : ""}`, x1: this.x(alarm.step), x2: this.x(alarm.step), y1: TOP, y2: BOTTOM,
      }, svg("title", {}, `${alarm.name}, step ${alarm.step}: ${alarm.message}`))),
      ...bad.map((step) => svg("line", { class: "bad", x1: this.x(step), x2: this.x(step), y1: BOTTOM - 8, y2: BOTTOM })),
      ...lines.map((line) => svg("path", { class: `line ${line.color ?? ""} ${line.faint ? "faint" : ""}`, d: this.path(line.steps, line.values) })),
      ...lines.filter((line) => line.steps.length <= 40 && !line.faint).flatMap((line) => this.dots(line)),
      this.brush, this.cursor,
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
    const count = this.grid.zoom ? bad.length : this.data.bad_count ?? bad.length;
    const all = this.lines.flatMap((line) => line.values);
    const left = this.data.log ? all.filter((value) => !(value > 0)).length : 0;
    let low = Infinity, high = -Infinity;
    for (const value of all) { if (value < low) low = value; if (value > high) high = value; }
    this.range.replaceChildren(
      make("span", {}, all.length ? `${written(low, { share: this.data.share })} to ${written(high, this.data)}` : this.grid.zoom ? "no value in this range" : "no finite value"),
      make("span", { class: "trouble" }, [count ? `${whole(count)} not finite` : "", left ? "values ≤ 0 not drawn" : ""].filter(Boolean).join(", ")),
    );
  }

  /** The place of a pointer in the drawing. */
  place(event) {
    const box = this.drawing.getBoundingClientRect();
    return Math.max(LEFT, Math.min(RIGHT, ((event.clientX - box.left) / box.width) * WIDTH));
  }

  point(event) {
    const x = this.place(event);
    if (this.grabbed === undefined) return this.at(x);
    this.brush.setAttribute("visibility", "visible");
    this.brush.setAttribute("x", Math.min(x, this.grabbed));
    return this.brush.setAttribute("width", Math.abs(x - this.grabbed));
  }

  grab(event) {
    if (event.button !== 0 || !this.span) return;
    this.grabbed = this.place(event);
    this.drawing.setPointerCapture(event.pointerId);
  }

  /** The steps that the pointer was dragged over become the range of all charts. */
  release(event) {
    if (this.grabbed === undefined) return;
    const [first, final] = this.span, ends = [this.grabbed, this.place(event)].sort((a, b) => a - b);
    this.grabbed = undefined;
    this.brush.setAttribute("visibility", "hidden");
    if (ends[1] - ends[0] > 6) this.grid.zoomTo(ends.map((x) => first + ((x - LEFT) / (RIGHT - LEFT)) * (final - first)));
  }

  /** The line whose steps are read. */
  base() {
    return this.lines?.find((line) => line.steps.length && !line.faint) ?? this.lines?.find((line) => line.steps.length);
  }

  /** The cursor at a place, moved to the nearest step that is drawn; that of the other charts follows. */
  at(x) {
    const base = this.base();
    if (!base) return;
    this.step = nearest(base.steps, (step) => this.x(step), x);
    const said = this.mark(this.step), box = this.drawing.getBoundingClientRect();
    tip([`step ${whole(this.step)}`, ...said.slice(0, 12)], box.left + (this.x(this.step) / WIDTH) * box.width, box.top + 40);
    this.grid.others(this, (chart) => chart.mark(this.step));
  }

  /** The cursor at a step, or nowhere; gives what the lines say there. */
  mark(step) {
    if (!this.cursor) return [];
    const said = [], line = this.cursor.firstChild, [first, final] = this.span, place = this.x(step ?? first);
    this.cursor.setAttribute("visibility", step === null || step < first || step > final ? "hidden" : "visible");
    this.cursor.replaceChildren(line);
    line.setAttribute("x1", place);
    line.setAttribute("x2", place);
    for (const one of this.lines) {
      const index = one.faint && this.lines.length === 2 ? -1 : one.steps.indexOf(step);
      if (index < 0 || !this.drawable(one.values[index])) continue;
      this.cursor.append(svg("circle", { class: one.color ?? "", cx: place, cy: this.y(one.values[index]), r: 3.2 }));
      said.push(`${one.name ? `${one.name}: ` : ""}${written(one.values[index], this.data)}`);
    }
    return said;
  }

  key(event) {
    const base = this.base(), move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const zoom = { "+": 0.25, "=": 0.25, "-": 1 }[event.key];
    if (event.key === "Escape" || (zoom && this.span)) {
      event.preventDefault();
      const [first, final] = this.span, middle = this.step ?? (first + final) / 2, wide = (final - first) * (zoom ?? 0);
      return this.grid.zoomTo(event.key === "Escape" || !this.grid.zoom && zoom === 1 ? null : [middle - wide, middle + wide]);
    }
    if (!base || move === undefined) return undefined;
    event.preventDefault();
    event.stopPropagation();
    const now = this.step === undefined || !base.steps.includes(this.step) ? base.steps.length - 1 - Math.sign(move) : base.steps.indexOf(this.step);
    return this.at(this.x(base.steps[Math.max(0, Math.min(base.steps.length - 1, now + move))]));
  }

  leave() {
    this.mark(null);
    this.grid.others(this, (chart) => chart.mark(null));
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

const PINNED = "penstock-pinned";

/** Which metrics are shown, and which come first: a search, and pins that this browser keeps. */
export class Choice {
  constructor(changed) {
    this.changed = changed;
    this.pinned = new Set(JSON.parse(localStorage.getItem(PINNED) ?? "[]"));
    this.box = make("input", { type: "search", id: "metrics", placeholder: "name", oninput: changed });
    this.label = make("label", { for: "metrics" }, "Find a metric ", this.box);
  }

  finds({ name, label, group }) {
    const wanted = this.box.value.trim().toLowerCase().split(/\s+/);
    return wanted.every((word) => `${name} ${label} ${group}`.toLowerCase().includes(word));
  }

  pin(name) {
    if (!this.pinned.delete(name)) this.pinned.add(name);
    localStorage.setItem(PINNED, JSON.stringify([...this.pinned]));
    this.changed();
  }
}

/** Charts of metrics in groups, each under its heading; those that were there before only get new data. `zoomed` hears of a new range. */
export class Grid {
  constructor(choice, zoomed = () => {}) {
    Object.assign(this, { choice, zoomed, zoom: null, charts: new Map() });
    this.range = make("span");
    this.note = make("p", { class: "zoom", hidden: true }, this.range, make("button", { type: "button", onclick: () => this.zoomTo(null) }, "Show all steps"));
    this.groups = make("div", { class: "groups" });
    this.element = make("div", {}, this.note, this.groups);
  }

  update(metrics) {
    const groups = new Map([["Pinned", []]]);
    for (const metric of metrics.filter((one) => this.choice.finds(one))) {
      if (!this.charts.has(metric.name)) this.charts.set(metric.name, new Chart(this));
      this.charts.get(metric.name).update(metric);
      const title = this.choice.pinned.has(metric.name) ? "Pinned" : metric.group;
      if (!groups.has(title)) groups.set(title, []);
      groups.get(title).push(metric.name);
    }
    const filled = [...groups].filter(([, names]) => names.length), shape = JSON.stringify(filled);
    if (shape === this.shape) return;
    this.shape = shape;
    const focus = document.activeElement;
    this.groups.replaceChildren(...filled.map(([title, names]) => make("section", { class: `group of-${Math.min(4, names.length)}` }, make("h3", {}, title),
      make("div", { class: "curves" }, names.map((name) => this.charts.get(name).element)))),
      ...(metrics.length && !filled.length ? [make("p", { class: "empty" }, "No metric matches.")] : []));
    if (this.groups.contains(focus)) focus.focus();
  }

  /** All charts show these steps, or all steps. */
  zoomTo(range) {
    const ends = range && [Math.max(0, Math.floor(range[0])), Math.ceil(range[1])];
    this.zoom = ends && ends[1] > ends[0] ? ends : null;
    this.note.hidden = !this.zoom;
    if (this.zoom) this.range.textContent = `Steps ${whole(this.zoom[0])} to ${whole(this.zoom[1])} `;
    for (const chart of this.charts.values()) { chart.dirty = true; if (chart.shown) chart.draw(); }
    this.zoomed();
  }

  others(chart, act) {
    for (const one of this.charts.values()) if (one !== chart && one.shown) act(one);
  }
}
