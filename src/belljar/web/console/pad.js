// A scratch pad: write a program, run it, see what it prints.

import { told } from "./api.js";
import { field, h, put, to } from "./elements.js";
import { careful, failed } from "./notice.js";
import { Output } from "./output.js";
import { follow } from "./run.js";
import { submitOnCtrlEnter } from "./sessions.js";

const LANGUAGES = ["python", "bash", "javascript", "typescript"];

export async function show(place, { signal }) {
  const language = h("select", {}, LANGUAGES.map((one) => h("option", {}, one)));
  const code = h("textarea", { rows: 10, class: "code", spellcheck: "false", required: true });
  const stdin = h("textarea", { rows: 2, class: "code" });
  const project = h("input", { placeholder: "default" });
  const timeout = h("input", { type: "number", min: 0.1, step: "any", placeholder: "as policy says" });
  const output = new Output();
  const results = h("div", {});
  const about = h("p", {});
  const run = careful(async () => {
    output.clear();
    put(results);
    put(about);
    const body = { language: language.value, code: code.value };
    if (stdin.value) body.stdin = stdin.value;
    if (project.value) body.project_id = project.value;
    if (timeout.value) body.timeout_s = Number(timeout.value);
    for await (const event of told("POST", "/run", { body, signal })) {
      if (event.kind === "error") failed(new Error(event.data.error.message));
      if (event.data.exec_id) put(about, to("runs", event.data.exec_id, "The whole of this run"));
      follow(event, output, results);
    }
  });
  put(place, h("h1", {}, "Scratch pad"),
    h("form", { onsubmit: run, onkeydown: submitOnCtrlEnter },
      field("Language", language), field("Code", code, "Ctrl+Enter runs it"),
      h("details", {}, h("summary", {}, "More"), field("Input", stdin), field("Project", project), field("Seconds at most", timeout)),
      h("button", { type: "submit", class: "main" }, "Run")),
    about, output.element, results);
}
