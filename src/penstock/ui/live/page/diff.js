// A word diff: the longest common subsequence of words, after what both begin and end with is set aside.

const MOST = 2500;

/** Words, runs of space, and single signs. */
export function words(text) {
  return text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/**
 * Parts of `after` against `before`, in order: {kind: "same" | "added" | "removed", text}.
 * Of texts so long that this would take long, the middle is given as removed and added as a whole.
 */
export function diff(before, after) {
  const a = words(before), b = words(after);
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const inner = middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const all = [...b.slice(0, head).map((text) => ["same", text]), ...inner, ...b.slice(b.length - tail).map((text) => ["same", text])];
  const joined = [];
  for (const [kind, text] of all) {
    if (joined.at(-1)?.kind === kind) joined.at(-1).text += text;
    else joined.push({ kind, text });
  }
  return joined;
}

function middle(a, b) {
  const removed = (list) => list.map((text) => ["removed", text]), added = (list) => list.map((text) => ["added", text]);
  if (!a.length || !b.length || a.length > MOST || b.length > MOST) return [...removed(a), ...added(b)];
  const wide = b.length + 1, common = new Uint16Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * wide + j] = a[i] === b[j] ? common[(i + 1) * wide + j + 1] + 1
        : Math.max(common[(i + 1) * wide + j], common[i * wide + j + 1]);
    }
  }
  const found = [];
  let i = 0, j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) { found.push(["same", b[j]]); i += 1; j += 1; }
    else if (common[(i + 1) * wide + j] >= common[i * wide + j + 1]) { found.push(["removed", a[i]]); i += 1; }
    else { found.push(["added", b[j]]); j += 1; }
  }
  return [...found, ...removed(a.slice(i)), ...added(b.slice(j))];
}
