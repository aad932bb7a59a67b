// Samples step by step: several answers to a prompt side by side, word diffs, the log-prob gap of each token, and asking people.

import { get, hasToken, post, runPath } from "./api.js";
import { kept } from "./curves.js";
import { diff } from "./diff.js";
import { whole, written } from "./dom.js";
import { make } from "./elements.js";

const LIMIT = 20;
const LEVELS = [0.001, 0.01, 0.05, 0.2];

/** How far apart learner and generator are on a token: 0 (as good as equal) to 4 (another policy). */
export function level(gap) {
  const size = Math.abs(gap);
  return LEVELS.filter((bound) => size >= bound).length;
}

function tokensOf({ pieces, logp, gap }) {
  const worst = gap.reduce((found, value, index) => (Math.abs(value ?? 0) > Math.abs(gap[found] ?? 0) ? index : found), 0);
  const mean = gap.reduce((sum, value) => sum + Math.abs(value ?? 0), 0) / Math.max(1, gap.length);
  const shown = pieces.map((piece, index) => make("span", {
    class: gap[index] === null ? "token unknown" : `token g${level(gap[index])} ${gap[index] < 0 ? "less" : "more"}`,
    title: `${gap[index] === null ? "gap not finite" : `gap ${gap[index] > 0 ? "+" : ""}${written(gap[index])} nats`}, sampled at ${logp[index] === null ? "?" : written(logp[index])}`,
  }, piece || "·"));
  const note = pieces.length ? `mean |gap| ${written(mean)} nats, largest ${written(gap[worst] ?? 0)} at token ${worst + 1}, ${pieces[worst] ? `“${pieces[worst]}”` : "which has no text of its own"}` : "no tokens";
  return [make("div", { class: "text" }, ...shown), make("p", { class: "note" }, note)];
}

function diffOf(base, text) {
  const tags = { added: "ins", removed: "del" };
  return [make("div", { class: "text" }, ...diff(base, text).map(({ kind, text: part }) => (tags[kind] ? make(tags[kind], {}, part) : part)))];
}

/** An image, a sound or a video of a sample. */
function mediumOf(id, { hash, kind }) {
  const tag = { image: "img", audio: "audio", video: "video" }[kind.split("/")[0]] ?? "span";
  const name = `${kind} ${hash.slice(0, 12)}`;
  return make(tag, { class: "medium", src: `/api/${runPath(id, `/blobs/${hash}`)}?kind=${encodeURIComponent(kind)}`, ...(tag === "img" ? { alt: name } : { controls: true, title: name }) });
}

/** Which of its prompt's samples one is, or in older logs its row. */
function nameOf(sample) {
  const place = /#(\d+)$/.exec(sample.key);
  return place ? `sample ${Number(place[1]) + 1}` : `row ${sample.row + 1}`;
}

export function samplesPane(id, query) {
  let head = null, stage = query.get("stage") ?? "", steps = [], stepVersion = "", step = Number(query.get("step") ?? -1), follow = !query.has("step");
  let other = query.has("with") ? Number(query.get("with")) : null;
  let shown = null, compared = null, offset = 0, serial = 0;
  const picked = new Map();
  const stages = make("select", { id: "stage", onchange: () => { stage = stages.value; stepVersion = ""; other = null; follow = true; picked.clear(); reload(); } });
  const slider = make("input", { type: "range", min: 0, max: 0, "aria-label": "step", oninput: () => go(steps[slider.value]) });
  const label = make("output", { class: "step" });
  const versus = make("select", { id: "with", onchange: () => { other = versus.value === "" ? null : Number(versus.value); load(); } });
  const differ = kept("diff", "word diff", true, () => draw());
  const gaps = kept("gaps", "log-prob gap", false, () => draw());
  const list = make("div", { class: "prompts" });
  const more = make("p", { class: "tools" });
  const note = make("p", { class: "note", role: "status" });
  const overlap = make("input", { type: "number", id: "overlap", min: 1, max: 50, value: 3 });
  const asking = make("button", { type: "button", onclick: ask }, "Ask people");
  const bar = make("div", { class: "askbar", role: "region", "aria-label": "Ask people" }, make("span", { class: "count" }),
    make("label", { for: "overlap" }, "judgements"), overlap, asking, make("button", { type: "button", onclick: () => { picked.clear(); draw(); } }, "Clear"));
  const move = (by) => go(steps[Math.max(0, Math.min(steps.length - 1, steps.indexOf(step) + by))]);
  const element = make("div", {},
    make("div", { class: "tools" }, make("label", { for: "stage" }, "Stage"), stages,
      make("span", { class: "picker" }, make("button", { type: "button", "aria-label": "earlier step", onclick: () => move(-1) }, "‹"), slider,
        make("button", { type: "button", "aria-label": "later step", onclick: () => move(1) }, "›"), label),
      make("label", { for: "with" }, "compared with"), versus, differ.label, gaps.label),
    make("p", { class: "legend gaps" }, ...["< 0.001", "0.001", "0.01", "0.05", "≥ 0.2 nats"].map((text, index) => make("span", {}, make("i", { class: `token g${index}` }), text))),
    note, list, more, bar);

  function go(wanted) {
    if (wanted === undefined || wanted === step) return;
    step = wanted;
    follow = step === steps.at(-1);
    offset = 0;
    load();
  }

  async function reload() {
    if (!stage) return;
    const answer = await get(runPath(id, "/steps"), { stage });
    if (answer.version === stepVersion) return;
    stepVersion = answer.version;
    const before = steps.length;
    steps = answer.steps;
    slider.max = Math.max(0, steps.length - 1);
    if (follow || !steps.includes(step)) step = steps.at(-1) ?? -1;
    if (steps.length !== before || shown?.step !== step || shown?.stage !== stage) await load();
  }

  async function load() {
    const mine = ++serial;
    slider.value = Math.max(0, steps.indexOf(step));
    slider.setAttribute("aria-valuetext", `step ${step}`);
    label.textContent = step < 0 ? "" : `step ${whole(step)}`;
    if (step < 0) { list.replaceChildren(make("p", { class: "empty" }, "No samples were logged yet.")); return; }
    const ask = (at) => get(runPath(id, "/samples"), { stage, step: at, offset, limit: LIMIT });
    const answers = await Promise.all([ask(step), other === null || other === step ? null : ask(other)]).catch((error) => error);
    if (mine !== serial) return;  // a later step was asked for meanwhile
    if (answers instanceof Error) { note.textContent = answers.message; return; }
    [shown, compared] = answers;
    const given = new URLSearchParams({ stage, step, ...(other === null ? {} : { with: other }) });
    history.replaceState(null, "", `#/run/${encodeURIComponent(id)}/samples?${given}`);
    fillVersus();
    draw();
  }

  function fillVersus() {
    const spread = steps.length <= 60 ? steps : Array.from({ length: 60 }, (_, i) => steps[Math.round((i * (steps.length - 1)) / 59)]);
    const offered = [...new Set([...spread, ...(other === null ? [] : [other])])].sort((a, b) => a - b);
    versus.replaceChildren(make("option", { value: "" }, "nothing"), ...offered.filter((one) => one !== step).map((one) =>
      make("option", { value: one }, `step ${whole(one)}`)));
    versus.value = other === null || other === step ? "" : other;
  }

  /** Samples by prompt, in order; those of the other step with the same prompt come after. */
  function grouped() {
    const groups = new Map();
    for (const sample of shown.rows) {
      const name = `${sample.held_out} ${sample.prompt}`;
      if (!groups.has(name)) groups.set(name, { prompt: sample.prompt, heldOut: sample.held_out, samples: [] });
      groups.get(name).samples.push({ ...sample, step });
    }
    for (const sample of compared?.rows ?? []) {
      groups.get(`${sample.held_out} ${sample.prompt}`)?.samples.push({ ...sample, step: other });
    }
    return [...groups.values()];
  }

  function draw() {
    if (!shown) return;
    element.classList.toggle("with-gaps", gaps.box.checked);
    const groups = grouped();
    const matched = groups.some((group) => group.samples.some((sample) => sample.step !== step));
    note.textContent = compared && !matched ? `Step ${whole(other)} has no sample of these prompts; “same prompt at other steps” lists the steps that do.` : "";
    list.replaceChildren(...groups.map(promptCard));
    const last = Math.min(shown.count, offset + LIMIT);
    more.replaceChildren(...(shown.count <= LIMIT ? [] : [`samples ${offset + 1} to ${last} of ${shown.count}`,
      make("button", { type: "button", disabled: offset === 0, onclick: () => { offset -= LIMIT; load(); } }, "earlier"),
      make("button", { type: "button", disabled: last >= shown.count, onclick: () => { offset += LIMIT; load(); } }, "later")]));
    drawBar();
  }

  function promptCard(group) {
    const others = make("p", { class: "same" });
    const find = make("button", { type: "button", class: "plain", onclick: () => elsewhere(group, others, find) }, "same prompt at other steps");
    return make("section", { class: "prompt" }, make("h3", {}, group.heldOut ? "held-out prompt" : "prompt"),
      make("div", { class: "text asked" }, group.prompt), make("p", { class: "follow" }, find), others,
      make("div", { class: "answers" }, group.samples.map((sample) => answerCard(sample, group))));
  }

  async function elsewhere(group, place, button) {
    button.disabled = true;
    const { steps: found } = await get(runPath(id, "/same"), { stage, step, row: group.samples[0].row }).catch((error) => ({ steps: [], error }));
    place.replaceChildren(...(found.length > 1 ? found.filter((one) => one !== step).map((one) => make("button", { type: "button", onclick: () => {
      other = one;
      load();
    } }, whole(one))) : ["no other logged step"]));
  }

  function answerCard(sample, group) {
    const base = group.samples[0];
    const isBase = sample === base;
    const compared = differ.box.checked && !isBase && base.text && sample.text;
    const content = gaps.box.checked && sample.tokens ? tokensOf(sample.tokens) : compared ? diffOf(base.text, sample.text)
      : sample.text || !sample.blobs.length ? [make("div", { class: "text" }, sample.text || "(nothing)")] : [];
    const facts = [["reward", sample.reward], ...(Object.keys(sample.rewards).length > 1 ? Object.entries(sample.rewards) : []), ["tokens", sample.length],
      ["finish", sample.finish], ["version", sample.version], ...Object.entries(sample.others)].filter(([, value]) => value !== "" && value !== null);
    const key = `${sample.step} ${sample.row}`;
    const pick = make("input", { type: "checkbox", checked: picked.has(key), onchange: (event) => {
      if (event.target.checked) picked.set(key, sample); else picked.delete(key);
      drawBar();
    } });
    return make("article", { class: `answer ${sample.error ? "failed" : ""}` },
      make("header", {}, make("label", {}, pick, sample.step === step ? nameOf(sample) : `step ${whole(sample.step)}, ${nameOf(sample)}`),
        differ.box.checked && group.samples.length > 1 && !gaps.box.checked ? make("span", { class: "note" }, isBase ? "the others are compared with this one" : "") : null),
      ...content, ...sample.blobs.map((blob) => mediumOf(id, blob)), gaps.box.checked && !sample.tokens ? make("p", { class: "note" }, "no log-probs were logged for this sample") : null,
      make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value))))),
      sample.error ? make("p", { class: "trouble" }, sample.error) : null);
  }

  function drawBar() {
    bar.hidden = !picked.size;
    bar.querySelector(".count").textContent = picked.size === 1 ? "1 sample: people rate it" : picked.size === 2 ? "2 samples: people compare them"
      : `${picked.size} samples: people rank them`;
    asking.disabled = !picked.size || !hasToken();
    asking.title = hasToken() ? "" : "open the page by the link that penstock ui printed; it holds the token";
  }

  async function ask() {
    asking.disabled = true;
    try {
      const samples = [...picked.values()].map((sample) => ({ step: sample.step, row: sample.row }));
      const { tasks, exact } = await post("ask", { run: id, stage, samples, overlap: Number(overlap.value) });
      note.textContent = `Asked: task ${tasks[0].slice(0, 8)}. People see it at penstock feedback serve.${exact ? "" : " The log has no exact tokens of these samples; the task is of their texts."}`;
      picked.clear();
      for (const box of list.querySelectorAll("article input")) box.checked = false;
      drawBar();
    } catch (error) {
      note.textContent = error.message;
      asking.disabled = false;
    }
    note.scrollIntoView({ block: "nearest" });
  }

  return {
    element,
    async refresh(now) {
      head = now;
      const names = head.stages.filter((one) => one.sampled).map((one) => one.name);
      if (!names.includes(stage)) stage = names.at(-1) ?? "";
      if (stages.options.length !== names.length) stages.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
      stages.value = stage;
      if (!stage) list.replaceChildren(make("p", { class: "empty" }, "No samples were logged yet."));
      if (stage && head.version !== stepVersion) await reload();
      drawBar();
    },
    keys(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, PageUp: -10, PageDown: 10 }[event.key];
      if (by === undefined || (event.key.startsWith("Page") && !event.shiftKey)) return;
      event.preventDefault();
      move(by);
    },
  };
}
