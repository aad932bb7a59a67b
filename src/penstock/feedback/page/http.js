// Calls of the service's JSON routes with the session's token, and calls that are tried until the server is heard.

import { Refused, Unreachable, request } from "./request.js";

const PATIENCE = 15000; // milliseconds in which an answer must have come

// Signed out, or somebody else has signed in since this page was loaded: nothing of it is accepted any more.
export const sessionEnded = (error) => error instanceof Refused && (error.status === 401 || error.code === "csrf");

// The secret of this session that pages of others cannot know.
const csrf = () => document.querySelector("meta[name=csrf]").content;

export function call(path, body) {
  const headers = { Accept: "application/json" };
  if (body === undefined) return request(path, { headers }, PATIENCE);
  Object.assign(headers, { "Content-Type": "application/json", "X-CSRF-Token": csrf() });
  return request(path, { method: "POST", headers, body: JSON.stringify(body) }, PATIENCE);
}

const LONGEST_WAIT = 30; // seconds between two attempts

// Seconds before the next attempt; random, so that pages that lost one server do not come back at once.
export const wait = (attempt, least = 0) =>
  Math.max(least, Math.min(LONGEST_WAIT, 2 ** attempt) * (0.5 + Math.random() / 2));

// A call that changes nothing if it happens twice: tried until the server is heard. `tell(cause, seconds)` is called for each
// wait, and `tell(null)` at the end.
export async function insist(path, body, tell) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const answer = await call(path, body);
      if (attempt) tell(null);
      return answer;
    } catch (error) {
      if (!(error instanceof Unreachable)) {
        if (attempt) tell(null);
        throw error;
      }
      const seconds = wait(attempt, error.after);
      tell(error.message, seconds);
      await new Promise((resolve) => {
        setTimeout(resolve, seconds * 1000);
      });
    }
  }
}

// Where the session has ended, nothing but loading anew helps; what was written stays in this browser.
export function leaveIfSignedOut(error) {
  if (!sessionEnded(error)) return false;
  location.reload();
  return true;
}
