// Which words two texts share, by their longest common subsequence.

const MOST_CELLS = 4e6; // of the table: some 10 ms and 8 MB

const words = (text) => text.match(/\s+|[\p{L}\p{N}_'’]+|[^\s\p{L}\p{N}_]/gu) ?? [];
const lines = (text) => text.match(/[^\n]*\n|[^\n]+$/g) ?? [];

// Two texts as lists of [piece, shared]. Joined, the pieces give the text. null where even the lines are too many to compare.
export function compare(left, right) {
  for (const [unit, pieces] of [
    ["words", words],
    ["lines", lines],
  ]) {
    const found = compareLists(pieces(left), pieces(right));
    if (found) return { unit, left: merge(found[0]), right: merge(found[1]) };
  }
  return null;
}

function compareLists(a, b) {
  let start = 0,
    endA = a.length,
    endB = b.length;
  while (start < endA && start < endB && a[start] === b[start]) start += 1;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) {
    endA -= 1;
    endB -= 1;
  }
  const middleA = a.slice(start, endA),
    middleB = b.slice(start, endB);
  if ((middleA.length + 1) * (middleB.length + 1) > MOST_CELLS) return null;
  const [sharedA, sharedB] = subsequence(middleA, middleB);
  const flags = (list, end, shared) => list.map((piece, i) => [piece, i < start || i >= end || shared.has(i - start)]);
  return [flags(a, endA, sharedA), flags(b, endB, sharedB)];
}

// Indices in both lists of one longest common subsequence.
function subsequence(a, b) {
  const width = b.length + 1,
    length = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      length[at] = a[i] === b[j] ? length[at + width + 1] + 1 : Math.max(length[at + width], length[at + 1]);
    }
  }
  const inA = new Set(),
    inB = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      inA.add(i);
      inB.add(j);
      i += 1;
      j += 1;
    } else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return [inA, inB];
}

// Neighbours that are alike become one piece; a space between two words that differ is marked with them.
function merge(flagged) {
  const merged = [];
  flagged.forEach(([piece, same], i) => {
    const between = same && /^[ \t]+$/.test(piece) && flagged[i - 1]?.[1] === false && flagged[i + 1]?.[1] === false;
    const last = merged.at(-1),
      shared = same && !between;
    if (last && last[1] === shared) last[0] += piece;
    else merged.push([piece, shared]);
  });
  return merged;
}
