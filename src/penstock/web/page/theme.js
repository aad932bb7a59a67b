"use strict";

// Light, dark or as the system has it. Runs before the page is drawn, so that nothing flashes.
const THEMES = { system: "◐", light: "☀", dark: "☾" };
const root = document.documentElement;

function apply(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
}

function stored() {
  try {
    return localStorage.getItem("penstock/theme") ?? "system";
  } catch {
    return "system";
  }
}

apply(stored());

document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  let theme = stored() in THEMES ? stored() : "system";
  const label = () => {
    button.textContent = THEMES[theme];
    button.setAttribute("aria-label", `Colours: ${theme === "system" ? "as the system" : theme}`);
  };
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    try {
      localStorage.setItem("penstock/theme", theme);
    } catch {
      /* a browser without storage: for this page only */
    }
    apply(theme);
    label();
  });
  label();
});
