// Tools and skills that the caller may use, each with a form to try it.

import { get, post } from "./api.js";
import { facts, h, put, section, to } from "./elements.js";
import { careful, field, submit } from "./forms.js";
import { formFor } from "./schema.js";
import { badge, short, value } from "./words.js";

export async function show(place, { signal }) {
  const [{ tools }, { skills }] = await Promise.all([get("/tools", signal), get("/skills", signal)]);
  put(place, h("h1", {}, "Catalogue"),
    section("Tools", tools.map((tool) => entry(tool.name, tool, signal))),
    section("Skills", skills.map((skill) => entry(skill.name, skill, signal))));
}

function entry(title, one, signal) {
  const isSkill = one.id !== undefined;
  return h("details", {},
    h("summary", {}, h("strong", {}, title), " ", one.risk && badge(one.risk), isSkill && h("code", {}, one.id)),
    h("p", {}, one.description),
    facts({ Limits: value(one.limits), Runs: one.strategy, Digest: one.digest && h("code", {}, short(one.digest)) }),
    tryIt(isSkill, one, signal));
}

function tryIt(isSkill, one, signal) {
  const form = formFor(isSkill ? one.inputs : one.input_schema);
  const project = h("input", { placeholder: "default" });
  const files = h("input", { type: "file", multiple: true });
  const answer = h("div", { "aria-live": "polite" });
  const send = careful(async () => {
    const path = isSkill ? `/skills/${encodeURIComponent(one.id)}/invoke` : `/tools/${encodeURIComponent(one.name)}`;
    const given = isSkill ? { inputs: form.value(), digest: one.digest } : { arguments: form.value() };
    if (files.files.length) given.files = await Promise.all([...files.files].map(sent));
    if (project.value) given.project_id = project.value;
    put(answer, answerOf(await post(path, given, signal)));
  });
  return h("form", { onsubmit: send },
    form.fields, isSkill && field("files", files), field("project", project), submit("Try it", { class: "main" }), answer);
}

async function sent(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  return { path: file.name, content_b64: btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join("")) };
}

function answerOf(answer) {
  return [
    answer.approval_id && h("p", {}, "It waits for a person: ", to("approvals", answer.approval_id, answer.approval_id)),
    answer.exec_id && h("p", {}, to("runs", answer.exec_id, "The run")),
    h("pre", { class: "text", tabindex: "0" }, JSON.stringify(answer, null, 2)),
  ];
}
