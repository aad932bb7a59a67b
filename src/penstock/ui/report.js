"use strict";

// The number under the pointer: nearest drawn point of the curve.
const tip = document.getElementById("tip");
for (const drawing of document.querySelectorAll("svg[data-points]")) {
  const cursor = drawing.querySelector(".cursor");
  let points = null;
  const hide = () => { cursor.setAttribute("visibility", "hidden"); tip.hidden = true; };
  drawing.addEventListener("pointerleave", hide);
  drawing.addEventListener("pointermove", (event) => {
    points ??= drawing.dataset.points.split(" ").filter(Boolean).map((text) => text.split(","));
    if (!points.length) return;
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * 320;
    let low = 0, high = points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (Number(points[middle][2]) < at) low = middle + 1; else high = middle;
    }
    if (low > 0 && at - points[low - 1][2] < points[low][2] - at) low -= 1;
    const [step, value, x, y] = points[low];
    const [line, dot] = cursor.children;
    line.setAttribute("x1", x); line.setAttribute("x2", x);
    dot.setAttribute("cx", x); dot.setAttribute("cy", y);
    cursor.setAttribute("visibility", "visible");
    tip.textContent = `step ${Number(step).toLocaleString("en")}: ${value.replaceAll("_", ",")}`;
    tip.hidden = false;
    const left = box.left + (x / 320) * box.width + 12;
    tip.style.left = `${Math.min(left, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${box.top + (y / 150) * box.height - 34}px`;
  });
}

// One step's samples at a time; without scripts all of them stay visible.
for (const samples of document.querySelectorAll("[data-samples]")) {
  const tables = [...samples.querySelectorAll("table")];
  const slider = samples.querySelector("input");
  const show = () => {
    tables.forEach((table, index) => {
      table.hidden = index !== Number(slider.value);
      table.classList.add("chosen");
    });
    samples.querySelector("output").textContent = `step ${tables[slider.value].dataset.step}`;
  };
  slider.addEventListener("input", show);
  for (const button of samples.querySelectorAll("[data-move]")) {
    button.addEventListener("click", () => { slider.value = Number(slider.value) + Number(button.dataset.move); show(); });
  }
  show();
}
