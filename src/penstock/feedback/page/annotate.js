// The annotation page: tasks one after the other, and how far one is.

import { Desk } from "./desk.js";
import { find } from "./elements.js";
import { call } from "./service.js";

const PAUSE = 300000; // milliseconds: a longer time between two answers is a pause
const AGAIN = 10; // answers after which the server is asked again how many are left
const times = [];
let goal = null,
  last = null;

// How long the rest takes at the pace of the last answers; nothing before there are three.
function rest(left) {
  const gaps = times.slice(1).map((time, i) => time - times[i]).filter((gap) => gap < PAUSE).sort((a, b) => a - b);
  if (gaps.length < 3 || !left) return "";
  const each = gaps[gaps.length >> 1],
    minutes = Math.ceil((each * left) / 60000);
  return `${Math.round(each / 1000)} s each, about ${minutes < 90 ? `${minutes} min` : `${Math.round(minutes / 60)} h`} to go`;
}

async function progress(done) {
  if (last !== null && done > last && times.push(Date.now()) > 20) times.shift();
  last = done;
  if (goal === null || done % AGAIN === 0) {
    const found = await call("/api/progress").catch(() => null); // a number to look at is not worth a message
    if (found) goal = found.done + found.left;
  }
  if (goal === null) return;
  goal = Math.max(goal, done);
  find("#goal").hidden = false;
  Object.assign(find("#goal"), { max: Math.max(1, goal), value: done });
  find("#of").textContent = `of ${goal.toLocaleString("en")} done`;
  find("#pace").textContent = rest(goal - done);
}

Desk.open({ request: {}, counted: progress });
