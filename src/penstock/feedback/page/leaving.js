// Signing out takes along what this browser keeps for the user, and other tabs follow.

import { find } from "./elements.js";

const channel = (user) => new BroadcastChannel(`penstock/${user}`);

export function wireSignOut(memory, tabs = channel(memory.user)) {
  find("#sign-out").addEventListener("submit", (event) => {
    const unsaved = memory.names("act/").length > 0;
    if (unsaved && !confirm("An answer has not been saved yet and would be lost. Sign out?")) {
      event.preventDefault();
      return;
    }
    memory.clear("draft/", "act/");
    tabs.postMessage({ left: true });
  });
  return tabs;
}
