// What the page asks its server for.

import { request } from "./request.js";

const KEY = "penstock-ui-token";
const DEADLINE_MS = 30000;

/** Takes the token out of the address, so that it is neither shown nor bookmarked, and keeps it for this tab. */
export function takeToken() {
  const found = /(?:^#|[#&?])token=([\w-]+)/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", `${location.pathname}#/`);
}

/** Whether this tab was opened by the link that holds the token. */
export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

async function call(path, options) {
  const token = sessionStorage.getItem(KEY);
  const headers = { ...(token ? { "X-Penstock-Token": token } : {}), ...options.headers };
  return request(path, { ...options, headers }, DEADLINE_MS);
}

/** JSON of a path below /api, with a query. */
export function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return call(`/api/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`, {});
}

export function post(path, body) {
  return call(`/api/${path}`, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

/** A run's path below /api. */
export function runPath(id, rest = "") {
  return `runs/${encodeURIComponent(id)}${rest}`;
}
