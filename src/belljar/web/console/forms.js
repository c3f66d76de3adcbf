// Fields and buttons, and what happens while something that was asked for is being done.

import { h } from "./elements.js";
import { failed, quiet } from "./notice.js";

export function field(label, input, help) {
  return h("label", { class: "field" }, h("span", {}, label), input, help && h("small", {}, help));
}

export function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, text);
}

export function submit(text, attributes = {}) {
  return h("button", { type: "submit", ...attributes }, text);
}

export function choice(options, chosen = options[0]) {
  return h("select", {}, options.map((one) => h("option", { value: one, selected: one === chosen }, one || "–")));
}

export function codeField(rows) {
  return h("textarea", { rows, class: "code", spellcheck: "false", required: true });
}

// Does something that may fail, with its button out of reach meanwhile.
export function careful(work) {
  return async (event) => {
    event.preventDefault();
    const pressed = event.submitter ?? event.currentTarget;
    quiet();
    pressed.disabled = true;
    try {
      await work(event);
    } catch (error) {
      failed(error);
    } finally {
      pressed.disabled = false;
      // What cannot be pressed has no focus either.
      const next = pressed.isConnected ? pressed : document.getElementById("content");
      if (document.activeElement === document.body) next.focus();
    }
  };
}

export function submitOnCtrlEnter(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const pressed = event.currentTarget.querySelector("[type=submit]");
  if (!pressed.disabled) event.currentTarget.requestSubmit(pressed);
}
