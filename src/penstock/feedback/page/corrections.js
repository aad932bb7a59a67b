// What users made of answers, one at a time: read, compared, approved or rejected; what was decided; and signals in numbers.

import { compare } from "./diff.js";
import { ask, banner, listen, say } from "./dom.js";
import { find, make } from "./elements.js";
import { Memory, call, leaveIfSignedOut, wireSignOut } from "./service.js";
import { table } from "./tables.js";

const DAY = 86400;
const AGAIN = 30000; // milliseconds between two looks at what waits
const RULED = [
  ["Edited version", ""],
  ["Tenant", ""],
  ["By", ""],
  ["Decision", ""],
  ["Reason", ""],
  ["Decided by", ""],
  ["Actions", "acts"],
];
const SIGNALS = [
  ["Tenant", ""],
  ["Signals", ""],
  ["Users", "n"],
  ["Capped", "n"],
  ["Good labels", "n"],
  ["Bad labels", "n"],
  ["Concerns", ""],
];
const KEYS = [
  ["a", "approve"],
  ["r", "reject (needs a reason)"],
  ["n", "write the reason; Escape leaves the field"],
  ["d", "show or hide the differences"],
  ["j, →", "next"],
  ["k, ←", "previous"],
  ["?", "show these shortcuts"],
];
// Characters that nobody sees: controls but tab and line feed, format characters, halves, private and unassigned ones.
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\u{E0100}-\u{E01EF}]/gu;
const memory = new Memory(find(".who").textContent);
let waiting = [];
let place = 0;
let marked = true;
let busy = false;

async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    if (!leaveIfSignedOut(error)) banner("notice", `${error.message}.`);
    return null;
  }
}

// A stranger's text: as text, with what nobody sees made visible.
function inert(text) {
  const parts = [];
  let done = 0;
  for (const found of text.matchAll(UNSEEN)) {
    const name = `U+${found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    const shown = make("span", { class: "unprintable", title: "an invisible character" }, name);
    parts.push(text.slice(done, found.index), shown);
    done = found.index + found[0].length;
  }
  return [...parts, text.slice(done)];
}

const one = () => waiting[place];

function count() {
  find("#count").textContent = waiting.length
    ? `${place + 1} of ${waiting.length} to review`
    : "Nothing to review.";
  find("#before").disabled = place === 0;
  find("#next").disabled = place + 1 >= waiting.length;
}

function show() {
  const found = one();
  count();
  find("#correction").hidden = !found;
  if (!found) return;
  const facts = [
    ["tenant", found.tenant],
    ["by", found.by],
    ["from", found.source],
    ["since", new Date(found.added * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC"],
  ];
  find("#about").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  find("#suspicions").hidden = !found.suspicions.length;
  find("#suspicions span").textContent = "Check carefully. This text:";
  find("#suspicions ul").replaceChildren(...found.suspicions.map((text) => make("li", {}, text)));
  find("#prompt").replaceChildren(...inert(found.prompt));
  find("#own").hidden = !found.own;
  find("#decide").hidden = found.own;
  find("#reason").value = "";
  draw();
}

function draw() {
  const { original, text } = one();
  const found = marked ? compare(original, text) : null;
  const fill = (id, whole, pieces) =>
    find(id).replaceChildren(
      ...(pieces ?? [[whole, true]]).flatMap(([piece, shared]) => (shared ? inert(piece) : [make("mark", {}, inert(piece))])),
    );
  fill("#original", original, found?.left);
  fill("#text", text, found?.right);
  find("#diff").setAttribute("aria-pressed", String(marked));
  const unit = found?.unit === "lines" ? "Lines" : "Words";
  const note = found ? `${unit} that differ are marked.` : "These texts are too long to compare.";
  find("#diff-note").textContent = marked ? note : "";
}

function go(by) {
  const wanted = place + by;
  if (wanted < 0 || wanted >= waiting.length) return;
  place = wanted;
  show();
  say(find("#count").textContent);
}

async function load(keep = one()?.id) {
  waiting = (await call("/api/corrections")).corrections;
  const found = waiting.findIndex((each) => each.id === keep);
  place = found >= 0 ? found : Math.max(0, Math.min(place, waiting.length - 1));
  if (found < 0 || !keep) show();
  else count();
  ruled((await call("/api/corrections/standing")).corrections);
}

async function decide(verdict) {
  const found = one();
  if (!found || found.own || busy) return;
  const reason = find("#reason"),
    days = find("#days");
  if (!reason.value.trim() && (verdict === "rejected" || found.suspicions.length)) {
    banner("notice", verdict === "rejected" ? "Please give a reason for rejecting it." : "This looks suspicious. Please give a reason for approving it.");
    reason.focus();
    return;
  }
  if (!days.reportValidity()) return;
  busy = true;
  const body = { id: found.id, verdict, note: reason.value.trim(), days: Number(days.value), seen: found.seen };
  const made = await guarded(() => call("/api/corrections/rule", body));
  busy = false;
  if (made) {
    banner("notice", null);
    waiting.splice(place, 1);
    place = Math.min(place, Math.max(0, waiting.length - 1));
    show();
  }
  await guarded(() => load(one()?.id));
  if (!made) return;
  const until = verdict === "approved" ? ` for ${Math.round(made.expires / DAY)} days` : "";
  say(`${verdict}${until}. ${find("#count").textContent}`);
  find("#title").focus();
}

function ruled(found) {
  const rows = found.map((each) => [
    "",
    details(each),
    each.tenant,
    each.by,
    verdictOf(each),
    each.note || "–",
    [each.ruled_by, make("small", {}, new Date(each.ruled * 1000).toISOString().slice(0, 10))],
    each.verdict === "approved" && !each.own ? withdrawing(each) : "",
  ]);
  find("#ruled").replaceChildren(
    rows.length ? table("Decided corrections", RULED, rows) : make("p", { class: "note" }, "Nothing has been reviewed yet."),
  );
}

const start = (text, most) => [...text].slice(0, most).join("");

function details({ prompt, original, text }) {
  const parts = [
    ["Prompt", prompt],
    ["Original answer", original],
    ["Edited version", text],
  ];
  const list = parts.flatMap(([name, whole]) => [make("dt", {}, name), make("dd", { class: "stranger" }, inert(whole))]);
  return make("details", {}, make("summary", {}, inert(start(text, 80))), make("dl", {}, list));
}

function withdrawing(each) {
  const label = `Withdraw ${start(each.text, 40)}`;
  return make("button", { type: "button", onclick: () => withdraw(each), "aria-label": label }, "Withdraw");
}

function verdictOf({ verdict, expires }) {
  if (verdict !== "approved") return make("span", { class: "verdict" }, verdict);
  if (expires <= 0) return make("span", { class: "verdict" }, "approved, expired");
  return [make("span", { class: "verdict approved" }, "approved"), make("small", {}, `${Math.ceil(expires / DAY)} days left`)];
}

async function withdraw({ id, seen }) {
  const reason = find("#withdraw-reason");
  reason.value = "";
  if ((await ask(find("#withdraw-dialog"))) !== "withdraw") return;
  const body = { id, verdict: "withdrawn", note: reason.value.trim(), seen };
  if (await guarded(() => call("/api/corrections/rule", body))) say("Withdrawn");
  await guarded(() => load());
}

async function signals() {
  if (!find("#signals")) return;
  const { tenants, policy } = await call("/api/admin/product");
  find("#signals-rule").textContent =
    `a label needs ${policy.users} users who agree; at most ${policy.user_day} signals per user count each day`;
  const listed = (of) => Object.entries(of).map(([name, count]) => `${name.replaceAll("_", " ")} ${count.toLocaleString("en")}`);
  const rows = Object.entries(tenants).map(([name, each]) => [
    "",
    name,
    [listed(each.signals).join(", ") || "none yet", make("small", {}, listed(each.reasons).join(", "))],
    String(each.users),
    String(each.capped),
    ...each.labels.map(String),
    each.concerns.length ? make("ul", { class: "warn" }, each.concerns.map((text) => make("li", {}, text))) : "–",
  ]);
  find("#signals").replaceChildren(
    rows.length ? table("Signals by tenant", SIGNALS, rows) : make("p", { class: "note" }, "No product has sent signals yet."),
  );
}

function press(name) {
  const acts = {
    a: () => decide("approved"),
    r: () => decide("rejected"),
    n: () => find("#reason").focus(),
    d: () => find("#diff").click(),
    j: () => go(1),
    k: () => go(-1),
    ArrowRight: () => go(1),
    ArrowLeft: () => go(-1),
    "?": () => ask(find("#help-dialog")),
  };
  if (!(name in acts) || (name !== "?" && !one())) return false;
  acts[name]();
  return true;
}

wireSignOut(memory);
find("#help-keys").replaceChildren(
  ...KEYS.flatMap(([keys, text]) => [make("dt", {}, make("kbd", {}, keys)), make("dd", {}, text)]),
);
const on = find("#keys-on");
on.checked = memory.read("keys") !== "off";
on.onchange = () => memory.write("keys", on.checked ? "on" : "off");
listen(press, () => on.checked);
find("#help-open").onclick = () => press("?");
find("#approve").onclick = () => decide("approved");
find("#reject").onclick = () => decide("rejected");
find("#before").onclick = () => go(-1);
find("#next").onclick = () => go(1);
find("#diff").onclick = () => {
  marked = !marked;
  draw();
};
find("#decide").onsubmit = (event) => event.preventDefault();
find("#reason").onkeydown = (event) => {
  if (event.key === "Escape") find("#title").focus();
};
await guarded(() => load());
await guarded(signals);
setInterval(() => {
  if (document.visibilityState === "visible" && !busy) guarded(() => load());
}, AGAIN);
