// One value of an answer: a row of radio buttons, or a number. Both give {element, value, set(value), focus(), holds(target)}.

import { make } from "./elements.js";

const MOST_BUTTONS = 11;
let count = 0;

export const nameOf = (place) => (place < 26 ? String.fromCharCode(65 + place) : String(place + 1));

// options: [{value, text, label}]; `changed` is called when somebody has chosen.
export function scale({ legend, options, value = null, changed, kind = "" }) {
  const group = `scale-${(count += 1)}`;
  const radios = options.map((option) =>
    make("input", {
      type: "radio",
      name: group,
      value: option.value,
      checked: option.value === value,
      "aria-label": option.label ?? option.text,
      onchange: changed,
    }),
  );
  const element = make(
    "fieldset",
    { class: `scale ${kind}` },
    make("legend", {}, legend),
    make("div", { class: "row" }, ...options.map((option, i) => make("label", {}, radios[i], make("span", {}, option.text)))),
  );
  return {
    element,
    get value() {
      const chosen = radios.find((radio) => radio.checked);
      return chosen ? Number(chosen.value) : null;
    },
    set(wanted) {
      const radio = radios.find((one) => Number(one.value) === wanted);
      if (radio) radio.checked = true;
      return Boolean(radio);
    },
    focus: () => (radios.find((radio) => radio.checked) ?? radios[0]).focus(),
    holds: (target) => element.contains(target),
  };
}

// A number from low to high, for scales with too many steps for buttons.
export function number({ legend, low, high, value = null, changed }) {
  const input = make("input", {
    type: "number",
    min: low,
    max: high,
    step: "any",
    inputmode: "decimal",
    value,
    oninput: changed,
  });
  const element = make("label", { class: "number" }, make("span", {}, legend), input, make("small", {}, `${low} to ${high}`));
  return {
    element,
    get value() {
      const given = input.valueAsNumber;
      return given >= low && given <= high ? given : null;
    },
    set: () => false,
    focus: () => input.focus(),
    holds: (target) => element.contains(target),
  };
}

// Whole numbers from low to high as buttons where they are few, else a number.
export function rated({ legend, low, high, value, changed }) {
  const steps = high - low + 1;
  if (!Number.isInteger(low) || !Number.isInteger(high) || steps > MOST_BUTTONS)
    return number({ legend, low, high, value, changed });
  const options = Array.from({ length: steps }, (_, i) => ({ value: low + i, text: String(low + i) }));
  options[0].label = `${low}, lowest`;
  options.at(-1).label = `${high}, highest`;
  return scale({ legend, options, value, changed });
}

// Number keys fill a list of fields: the one that has the focus, else the first empty one; then the focus moves on.
export function typeInto(fields, digit, changed, end) {
  const field = fields.find((one) => one.holds(document.activeElement)) ?? fields.find((one) => one.value === null);
  if (!field || !field.set(digit)) return false;
  changed();
  const next = fields.find((one) => one.value === null);
  if (next) next.focus();
  else end.focus();
  return true;
}
