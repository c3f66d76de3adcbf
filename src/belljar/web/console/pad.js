// A scratch pad: write a program, run it, see what it prints.

import { told } from "./api.js";
import { h, put, to } from "./elements.js";
import { careful, choice, codeField, field, submit, submitOnCtrlEnter } from "./forms.js";
import { Transcript } from "./transcript.js";

const LANGUAGES = ["python", "bash", "javascript", "typescript"];

export async function show(place, { signal }) {
  const language = choice(LANGUAGES);
  const code = codeField(10);
  const stdin = h("textarea", { rows: 2, class: "code" });
  const project = h("input", { placeholder: "default" });
  const timeout = h("input", { type: "number", min: 0.1, step: "any", placeholder: "as policy says" });
  const transcript = new Transcript("Output");
  const about = h("p", {});
  const run = careful(async () => {
    transcript.clear();
    put(about);
    const body = { language: language.value, code: code.value };
    if (stdin.value) body.stdin = stdin.value;
    if (project.value) body.project_id = project.value;
    if (timeout.value) body.timeout_s = Number(timeout.value);
    for await (const event of told("POST", "/run", { body, signal })) {
      if (event.kind === "error") throw new Error(event.data.error.message);
      if (event.data.exec_id) put(about, to("runs", event.data.exec_id, "The whole of this run"));
      transcript.follow(event);
    }
  });
  put(place, h("h1", {}, "Scratch pad"),
    h("form", { onsubmit: run, onkeydown: submitOnCtrlEnter },
      field("Language", language),
      field("Code", code, "Ctrl+Enter runs it"),
      h("details", {}, h("summary", {}, "More"),
        field("Input", stdin), field("Project", project), field("Seconds at most", timeout)),
      submit("Run", { class: "main" })),
    about, transcript.elements);
}
