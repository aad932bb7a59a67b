// Which words two texts share, by their longest common subsequence.

const MOST_CELLS = 4e6; // of the table: some 10 ms and 8 MB

const words = (text) => text.match(/\s+|[\p{L}\p{N}_'’]+|[^\s\p{L}\p{N}_]/gu) ?? [];
const lines = (text) => text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
const marked = (kind, pieces) => pieces.map((piece) => [kind, piece]);

// The way from one text to the other in order, as {unit, steps: [["same" | "removed" | "added", piece]…]}, by words, or by lines
// where the words are too many. null where even the lines are.
function way(before, after) {
  for (const [unit, pieces] of [
    ["words", words],
    ["lines", lines],
  ]) {
    const a = pieces(before),
      b = pieces(after);
    let head = 0,
      tail = 0;
    while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
    const rest = Math.min(a.length, b.length) - head;
    while (tail < rest && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
    const middleA = a.slice(head, a.length - tail),
      middleB = b.slice(head, b.length - tail);
    if ((middleA.length + 1) * (middleB.length + 1) > MOST_CELLS) continue;
    const middle = subsequence(middleA, middleB);
    return { unit, steps: [...marked("same", b.slice(0, head)), ...middle, ...marked("same", b.slice(b.length - tail))] };
  }
  return null;
}

function subsequence(a, b) {
  const width = b.length + 1,
    length = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      length[at] = a[i] === b[j] ? length[at + width + 1] + 1 : Math.max(length[at + width], length[at + 1]);
    }
  }
  const steps = [];
  let i = 0,
    j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      steps.push(["same", a[i]]);
      i += 1;
      j += 1;
    } else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) {
      steps.push(["removed", a[i]]);
      i += 1;
    } else {
      steps.push(["added", b[j]]);
      j += 1;
    }
  }
  return [...steps, ...marked("removed", a.slice(i)), ...marked("added", b.slice(j))];
}

// Both texts as lists of [piece, shared]: joined, the pieces give the text. null where they are too long to compare.
export function compare(left, right) {
  const found = way(left, right);
  if (!found) return null;
  const side = (other) =>
    merged(found.steps.filter(([kind]) => kind !== other).map(([kind, piece]) => [piece, kind === "same"]));
  return { unit: found.unit, left: side("added"), right: side("removed") };
}

// One text with what the other had in its place: [{kind, text}…]. Of texts that are too long to compare each is given as a whole.
export function diff(before, after) {
  const steps = way(before, after)?.steps ?? [
    ["removed", before],
    ["added", after],
  ];
  const joined = [];
  for (const [kind, piece] of steps) {
    if (joined.at(-1)?.kind === kind) joined.at(-1).text += piece;
    else joined.push({ kind, text: piece });
  }
  return joined;
}

// Neighbours that are alike become one piece; a space between two words that differ is marked with them.
function merged(flagged) {
  const found = [];
  flagged.forEach(([piece, same], i) => {
    const between = same && /^[ \t]+$/.test(piece) && flagged[i - 1]?.[1] === false && flagged[i + 1]?.[1] === false;
    const last = found.at(-1),
      shared = same && !between;
    if (last && last[1] === shared) last[0] += piece;
    else found.push([piece, shared]);
  });
  return found;
}
