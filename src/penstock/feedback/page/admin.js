// The administrator's page: numbers that are loaded again now and then, people, the log.

import { dayBars, band } from "./chart.js";
import { banner, newKey } from "./dom.js";
import { all, find, make } from "./elements.js";
import { call, leaveIfSignedOut } from "./http.js";
import { wireSignOut } from "./leaving.js";
import { Log } from "./log.js";
import { Memory } from "./memory.js";
import * as people from "./people.js";
import { Refused } from "./request.js";
import { fixed, table } from "./table.js";

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
  const [found, accounts] = await Promise.all([call("/api/admin/overview"), people.accounts()]);
  facts(found);
  progress(found.progress);
  find("#days").replaceChildren(found.days.length ? dayBars(found.days) : make("p", { class: "note" }, "No votes yet."));
  agreement(found.agreement);
  people.draw(withAccounts(found.annotators, accounts), accounts, change);
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
  return accounts.map(({ name, role, nature, enabled }) => ({ ...(known.get(name) ?? nothing), name, role, nature, enabled }));
}

function facts({ events, progress: purposes, skipped, flagged }) {
  const sum = (name) => purposes.reduce((total, one) => total + one[name], 0);
  const rows = [
    ["judgements", sum("judgements")],
    ["tasks", sum("tasks")],
    ["open", sum("open")],
    ["skipped", skipped],
    ["flagged", flagged],
    ["events", events],
  ];
  find("#facts").replaceChildren(
    ...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value.toLocaleString("en")))),
  );
}

function progress(purposes) {
  const bar = ({ purpose, tasks, open }) =>
    make("progress", { max: tasks, value: tasks - open, "aria-label": `${purpose}: finished tasks` });
  const card = (one) =>
    make(
      "li",
      {},
      make("b", {}, one.purpose),
      make("span", {}, one.purpose === "gold" ? `${one.tasks} tasks` : `${one.tasks - one.open} of ${one.tasks}`),
      one.purpose === "gold" ? null : bar(one), // gold tasks are never finished: everybody is asked
      make("span", { class: "note" }, `${one.judgements} judgements`),
    );
  find("#progress").replaceChildren(...(purposes.length ? purposes.map(card) : [make("li", {}, "No tasks yet.")]));
}

function agreement(rows) {
  const columns = [
    ["Axis", ""],
    ["Alpha", "n"],
    ["From −1 to 1", "interval"],
    ["Interval", "n"],
    ["Units", "n"],
  ];
  find("#agreement").replaceChildren(
    table(
      "Agreement by axis",
      columns,
      rows.map(({ axis, alpha, interval, units }) => [
        "",
        axis,
        fixed(alpha, 2),
        alpha === null || !interval ? "too few to tell" : band(alpha, interval, -1, 1),
        interval ? `${interval[0].toFixed(2)} to ${interval[1].toFixed(2)}` : "–",
        String(units),
      ]),
    ),
  );
}

// Save an export, and tell the hash that a run which trains on these rows will record.
async function download(url) {
  find("#exported").textContent = "Making the file…";
  const response = await fetch(url);
  if (!response.ok) {
    find("#exported").textContent = "";
    throw new Refused(response.status, (await response.json()).error ?? {});
  }
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition"))?.[1] ?? "feedback";
  const link = make("a", { href: URL.createObjectURL(await response.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  find("#exported").textContent = `${name}, content ${response.headers.get("X-Content-Hash")}`;
}

const log = new Log(guarded, async (event, reason) => {
  await call("/api/admin/retract", { key: newKey(), event, reason });
  await overview();
});
wireSignOut(new Memory(find(".who").textContent));
people.wire(change);
for (const link of all("[data-export]"))
  link.addEventListener("click", (event) => {
    event.preventDefault();
    guarded(() => download(link.href));
  });
guarded(overview);
log.go(null);
setInterval(() => {
  if (document.visibilityState === "visible") guarded(overview);
}, AGAIN);
