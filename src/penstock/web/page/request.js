// A request of one's own server, answered in JSON. Two things can go wrong, and they are distinguished: the server said no, or it
// was not heard.

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

export class Unreachable extends Error {
  constructor(message, after = 0) {
    super(message);
    this.after = after; // seconds that the server asked to wait
  }
}

// What the server answers, within `patience` milliseconds. `options` as those of fetch. Throws Refused or Unreachable.
export async function request(path, options, patience) {
  let response, content;
  try {
    response = await fetch(path, {
      credentials: "same-origin",
      redirect: "error",
      cache: "no-store",
      signal: AbortSignal.timeout(patience),
      ...options,
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
  throw new Refused(status, content.error);
}
