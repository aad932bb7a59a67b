// Annotators: how they do, enrolling them, inviting again, switching off and on.

import { say } from "./dom.js";
import { find, make } from "./elements.js";
import { call } from "./http.js";
import { fixed, share, table } from "./table.js";

const COLUMNS = [
  ["Name", ""],
  ["Done", "n"],
  ["Per hour", "n"],
  ["Gold right", "n"],
  ["Repeats alike", "n"],
  ["Left chosen", "n"],
  ["Hasty", "n"],
  ["Weight", "n"],
  ["Concerns", ""],
  ["Actions", "acts"],
];

// Draw the table of what the overview and the accounts say; `change(body)` asks the server for a change and loads anew.
export function draw(found, accounts, change) {
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
  const state = [
    one.role,
    one.nature === "human" ? "" : one.nature,
    one.enabled ? "" : "switched off",
    account?.invited ? "invited" : "",
  ].filter(Boolean);
  const concerns = one.concerns.length
    ? make("ul", { class: "warn" }, ...one.concerns.map((text) => make("li", {}, text)))
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
    one.nature === "human" ? acts(one, change) : "",
  ];
}

function acts({ name, enabled }, change) {
  return [
    make(
      "button",
      {
        type: "button",
        "data-act": `invite ${name}`,
        "aria-label": `New invite for ${name}`,
        onclick: async () => {
          const made = await change({ name, invite: true });
          if (made) invite(name, made.invite);
        },
      },
      "New invite",
    ),
    " ",
    make(
      "button",
      {
        type: "button",
        "data-act": `switch ${name}`,
        "aria-label": `Switch ${name} ${enabled ? "off" : "on"}`,
        onclick: () => change({ name, enabled: !enabled }),
      },
      enabled ? "Switch off" : "Switch on",
    ),
  ];
}

export function wire(change) {
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

export const accounts = async () => (await call("/api/admin/annotators")).annotators;
