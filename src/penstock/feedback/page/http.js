// Calls of the server's JSON routes. Two things can go wrong, and they are told apart: the server said no, or it was not heard.

const PATIENCE = 15000; // milliseconds in which an answer must have come

export class Refused extends Error {
  constructor(status, error) {
    super(error.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error.code ?? "";
  }

  // Signed out, or somebody else has signed in since this page was loaded: nothing of it is accepted any more.
  get sessionEnded() {
    return this.status === 401 || this.code === "csrf";
  }
}

export class Unreachable extends Error {
  constructor(message, after = 0) {
    super(message);
    this.after = after; // seconds that the server asked to wait
  }
}

// The secret of this session that pages of others cannot know.
const csrf = () => document.querySelector("meta[name=csrf]").content;

export async function call(path, body, method = body === undefined ? "GET" : "POST") {
  const headers = { Accept: "application/json" };
  if (body !== undefined) Object.assign(headers, { "Content-Type": "application/json", "X-CSRF-Token": csrf() });
  let response, content;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE),
    });
    content = await response.json();
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "no answer in time" : "the server cannot be reached");
  }
  if (response.ok) return content;
  const { status } = response;
  if (status >= 500 || status === 429 || status === 408) {
    throw new Unreachable(content.error?.message ?? `status ${status}`, Number(response.headers.get("Retry-After")) || 0);
  }
  throw new Refused(status, content.error ?? {});
}

const LONGEST_WAIT = 30; // seconds between two attempts

// Seconds before the next attempt; drawn at random, so that pages that lost one server do not come back at once.
export const wait = (attempt, least = 0) =>
  Math.max(least, Math.min(LONGEST_WAIT, 2 ** attempt) * (0.5 + Math.random() / 2));

// A call that changes nothing if it happens twice: tried until the server is heard. `tell(cause, seconds)` is told of each
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
  if (!(error instanceof Refused) || !error.sessionEnded) return false;
  location.reload();
  return true;
}
