// The administrator's page: numbers that are loaded again now and then, people, the log.

import { Asking } from "./asking.js";
import { ask, banner, newKey, say } from "./dom.js";
import { all, find, make } from "./elements.js";
import { Log, PURPOSES } from "./log.js";
import { ProjectPart } from "./project.js";
import { Refused } from "./request.js";
import { Memory, call, inProject, leaveIfSignedOut, wireSignOut } from "./service.js";
import { band, dayBars, fixed, share, table } from "./tables.js";

const CONCERNS = {
  gold: "fails gold questions",
  inconsistent: "contradicts earlier answers",
  hasty: "answers too fast",
  "one side": "favours one side",
  "against the others": "disagrees with the others",
  "one rating": "always gives the same rating",
};
const AGAIN = 30000; // milliseconds between two looks at the numbers

// Do something that may be refused; gives what it gives, or null.
async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    if (!leaveIfSignedOut(error)) banner("notice", `${error.message}.`);
    return null;
  }
}

const change = (body) =>
  guarded(async () => {
    const answer = await call("/api/admin/annotators", body);
    await overview();
    return answer;
  });

async function overview() {
  const [found, enrolled] = await Promise.all([call("/api/admin/overview"), accounts(), part.before ?? part.load()]);
  facts(found);
  progress(found.progress);
  find("#days").replaceChildren(found.days.length ? dayBars(found.days) : make("p", { class: "note" }, "No votes yet."));
  agreement(found.agreement);
  drawPeople(withAccounts(found.annotators, enrolled), enrolled, change);
  part.offer(enrolled);
}

// The numbers may be some seconds old; who is enrolled and whether they are switched on is not.
function withAccounts(found, accounts) {
  const known = new Map(found.map((one) => [one.name, one]));
  const nothing = {
    done: 0,
    per_hour: null,
    gold: null,
    consistency: null,
    left: null,
    hasty: null,
    weight: null,
    concerns: [],
  };
  const here = accounts.filter(({ name }) => known.has(name) || part.members.includes(name));
  return here.map(({ name, role, nature, enabled }) => ({ ...(known.get(name) ?? nothing), name, role, nature, enabled }));
}

function facts({ events, progress: purposes, skipped, flagged, imported }) {
  const sum = (name) => purposes.reduce((total, one) => total + one[name], 0);
  const rows = [
    ["judgements", sum("judgements")],
    ["tasks", sum("tasks")],
    ["open tasks", sum("open")],
    ["skipped", skipped],
    ["flagged", flagged],
    ["imported labels", imported],
    ["events in the log", events],
  ];
  find("#facts").replaceChildren(
    ...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value.toLocaleString("en")))),
  );
}

function progress(purposes) {
  const bar = ({ purpose, tasks, open }) =>
    make("progress", { max: tasks, value: tasks - open, "aria-label": `${PURPOSES[purpose] ?? purpose}: finished tasks` });
  const card = (one) =>
    make(
      "li",
      {},
      make("b", {}, PURPOSES[one.purpose] ?? one.purpose),
      make("span", {}, one.purpose === "gold" ? `${one.tasks} ${one.tasks === 1 ? "task" : "tasks"}` : `${one.tasks - one.open} of ${one.tasks} done`),
      one.purpose === "gold" ? null : bar(one), // gold tasks are never finished: everybody is asked
      make("span", { class: "note" }, `${one.judgements} ${one.judgements === 1 ? "judgement" : "judgements"}`),
    );
  find("#progress").replaceChildren(...(purposes.length ? purposes.map(card) : [make("li", {}, "No tasks yet.")]));
}

function agreement(rows) {
  const columns = [
    ["Axis", ""],
    ["Alpha", "n"],
    ["From −1 to 1", "interval"],
    ["95% interval", "n"],
    ["Shared items", "n"],
  ];
  find("#agreement").replaceChildren(
    table(
      "Agreement by axis",
      columns,
      rows.map(({ axis, alpha, interval, units }) => [
        "",
        axis,
        fixed(alpha, 2),
        alpha === null || !interval ? "too few answers" : band(alpha, interval, -1, 1),
        interval ? `${interval[0].toFixed(2)} to ${interval[1].toFixed(2)}` : "–",
        String(units),
      ]),
    ),
  );
}

// Save an export, and show the hash that a run which trains on these rows will record.
async function download(url) {
  find("#exported").textContent = "Preparing the file…";
  const response = await fetch(inProject(url));
  if (!response.ok) {
    find("#exported").textContent = "";
    throw new Refused(response.status, (await response.json()).error ?? {});
  }
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition"))?.[1] ?? "feedback";
  const link = make("a", { href: URL.createObjectURL(await response.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  find("#exported").textContent = `Saved ${name}. Content hash ${response.headers.get("X-Content-Hash")}`;
}

// Annotators: how they do, enrolling them, inviting again, switching off and on.
const COLUMNS = [
  ["Name", ""],
  ["Done", "n"],
  ["Per hour", "n"],
  ["Gold accuracy", "n"],
  ["Self-consistency", "n"],
  ["Chose left", "n"],
  ["Too fast", "n"],
  ["Weight", "n"],
  ["Concerns", ""],
  ["Actions", "acts"],
];

// Draw the table of what the overview and the accounts say; `change(body)` asks the server for a change and loads anew.
function drawPeople(found, accounts, change) {
  const account = new Map(accounts.map((one) => [one.name, one]));
  const focused = document.activeElement?.dataset?.act;
  find("#people").replaceChildren(
    table(
      "Annotators",
      COLUMNS,
      found.map((one) => row(one, account.get(one.name), change)),
    ),
  );
  if (focused) find(`[data-act="${CSS.escape(focused)}"]`)?.focus();
}

function row(one, account, change) {
  const deleted = one.name.startsWith("former-");
  const state = [
    one.role,
    one.nature === "human" ? "" : one.nature,
    deleted ? "deleted" : one.enabled ? "" : "switched off",
    account?.invited ? "invited" : "",
    deleted || part.members.includes(one.name) ? "" : "not a member of this project",
  ].filter(Boolean);
  const concerns = one.concerns.length
    ? make("ul", { class: "warn" }, ...one.concerns.map((name) => make("li", {}, CONCERNS[name] ?? name)))
    : "–";
  return [
    one.enabled ? "" : "off",
    [one.name, make("small", {}, state.join(", "))],
    String(one.done),
    fixed(one.per_hour, 0),
    share(one.gold),
    share(one.consistency),
    share(one.left),
    share(one.hasty),
    fixed(one.weight, 2),
    concerns,
    one.nature === "human" && !deleted ? acts(one, account, change) : "",
  ];
}

// Another role, another limit.
async function edit({ name, role, quota }, change) {
  find("#person-title").textContent = `Change ${name}`;
  find("#person-role").value = role;
  find("#person-quota").value = quota;
  const member = part.members.includes(name);
  find("#person-member").checked = member;
  if ((await ask(find("#person-dialog"))) !== "save") return;
  const wanted = { role: find("#person-role").value, quota: find("#person-quota").valueAsNumber };
  const changed = Object.fromEntries(Object.entries(wanted).filter(([field, value]) => value !== { role, quota }[field]));
  if (Object.keys(changed).length && (await change({ name, change: changed }))) say(`${name} changed`);
  if (find("#person-member").checked !== member) await guarded(() => part.member(name, !member));
}

async function forget({ name }) {
  find("#forget-title").textContent = `Delete ${name}`;
  find("#forget-name").value = "";
  if ((await ask(find("#forget-dialog"))) !== "forget") return;
  if (find("#forget-name").value.trim() !== name) return banner("notice", `Not deleted: the name you typed is not ${name}.`);
  return guarded(async () => {
    const { pseudonym } = await call("/api/admin/forget", { name, votes: find("#forget-votes").value });
    await overview();
    say(`Deleted; the log names ${pseudonym}`);
  });
}

// What somebody said, always or in some days (UTC), does not count any more; the log has an event to take that back by.
async function exclude({ name }) {
  find("#exclude-title").textContent = `Exclude the work of ${name}`;
  const [since, until, reason] = ["#exclude-since", "#exclude-until", "#exclude-reason"].map((field) => find(field));
  since.value = until.value = reason.value = "";
  const everywhere = find("#exclude-everywhere");
  everywhere.checked = false;
  if ((await ask(find("#exclude-dialog"))) !== "exclude") return;
  const from = since.value ? { since: since.valueAsNumber / 1000 } : {};
  const to = until.value ? { until: until.valueAsNumber / 1000 + 86400 } : {}; // the last day counts as a whole
  return guarded(async () => {
    await call(everywhere.checked ? "/api/admin/exclude?project=" : "/api/admin/exclude", { key: newKey(), name, reason: reason.value.trim(), ...from, ...to });
    await overview();
    say(`${name}'s work no longer counts. You can undo this from the log.`);
    await log.newest();
  });
}

const act = (verb, name, text, label, onclick) => make("button", { type: "button", "data-act": `${verb} ${name}`, "aria-label": label, onclick }, text);

function acts({ name, enabled }, account, change) {
  const invited = async () => {
    const made = await change({ name, invite: true });
    if (made) invite(name, made.invite);
  };
  const turned = enabled ? "off" : "on";
  return make(
    "span",
    { class: "tools acts" },
    act("invite", name, "New invite link", `New invite link for ${name}`, invited),
    act("switch", name, `Switch ${turned}`, `Switch ${name} ${turned}`, () => change({ name, enabled: !enabled })),
    account && act("edit", name, "Change…", `Change ${name}`, () => edit(account, change)),
    act("exclude", name, "Exclude…", `Exclude the work of ${name}`, () => exclude({ name })),
    act("forget", name, "Delete…", `Delete ${name}`, () => forget({ name })),
  );
}

function wirePeople() {
  find("#enrol").addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = find("#enrol-name").value.trim();
    const attributes = Object.fromEntries(
      find("#enrol-attributes")
        .value.split(",")
        .map((part) => part.split("=").map((text) => text.trim()))
        .filter(([key, value]) => key && value),
    );
    const made = await change({ name, role: find("#enrol-role").value, attributes });
    if (!made) return;
    await guarded(() => part.load().then(overview));
    event.target.reset();
    invite(name, made.invite);
  });
  find("#invite button").addEventListener("click", async () => {
    find("#invite-link").select();
    await navigator.clipboard?.writeText(find("#invite-link").value);
    say("Copied");
  });
}

function invite(name, path) {
  find("#invite").hidden = false;
  find("#invite b").textContent = name;
  find("#invite-link").value = new URL(path, location.origin).href;
  find("#invite-link").focus();
  find("#invite-link").select();
}

const accounts = async () => (await call("/api/admin/annotators")).annotators;

const part = new ProjectPart(guarded, overview);
const log = new Log(guarded, async (event, reason, kind) => {
  await call(`/api/admin/${kind === "exclude" ? "exclude" : "retract"}`, { key: newKey(), event, reason });
  await overview();
});
wireSignOut(new Memory(find(".who").textContent));
wirePeople();
for (const link of all("[data-export]"))
  link.addEventListener("click", (event) => {
    event.preventDefault();
    guarded(() => download(link.href));
  });
guarded(overview);
new Asking(guarded, overview).load();
log.newest();
setInterval(() => {
  if (document.visibilityState === "visible") guarded(overview);
}, AGAIN);
