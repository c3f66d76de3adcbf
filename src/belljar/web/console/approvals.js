// What waits for a person, and all that a person needs to decide: the program, what was found in it, what it would get.

import { every, get, post, query } from "./api.js";
import { listing } from "./code.js";
import { faint, facts, h, list, put, renew, section, to } from "./elements.js";
import { button, careful, field } from "./forms.js";
import { grantTable } from "./grant.js";
import { failed, say } from "./notice.js";
import { badge, decision, moment, short, value } from "./words.js";

const LOOK_AGAIN_MS = 3000;
const STATES = ["waiting", "approved", "denied", "expired", "void"];
const HEADS = ["Approval", "Project", "Risk", "Why", "Asked by", "Asked", "Until"];
const TOO_LONG = "Not all of it can be shown here. Do not approve what you have not seen.";

const path = (id) => `/approvals/${encodeURIComponent(id)}`;

export async function waitingCount(signal) {
  return (await get("/approvals", signal)).approvals.length;
}

export async function show(place, { asked, signal }) {
  const state = asked.get("state") ?? "waiting";
  const found = h("div", { "aria-live": "polite" });
  const states = h("p", { class: "actions" }, STATES.map((one) => stateLink(one, one === state)));
  put(place, h("h1", {}, "Approvals"), states, found);
  await every(LOOK_AGAIN_MS, signal, async () => {
    const { approvals } = await get(query("/approvals", { state }), signal);
    renew(found, approvals, () => list("Approvals", HEADS, approvals.map(rowOf)));
  }, failed);
}

function stateLink(state, isShown) {
  return h("a", { href: query("#/approvals", { state }), "aria-current": isShown && "true" }, state);
}

export async function showOne(place, { id, signal }) {
  const approval = await get(path(id), signal);
  const waits = approval.state === "waiting";
  put(place,
    h("h1", {}, "Approval ", h("code", {}, id)),
    h("p", { class: "actions" }, badge(approval.state), badge(approval.tier), to("runs", approval.exec_id, "The run")),
    approval.answer && h("p", {}, decision(approval.state, approval.answer)),
    waits && !approval.complete && h("p", { class: "fault" }, TOO_LONG),
    h("div", { class: "beside" },
      section("Program", program(approval)),
      section("It would get", grantTable(approval.grant.fields))),
    waits && decisionForm(approval, signal, () => showOne(place, { id, signal })));
}

function rowOf(approval) {
  return [
    to("approvals", approval.id, short(approval.id)), approval.project_id, badge(approval.tier),
    approval.reasons.join("; "), approval.asked_by, moment(approval.asked_at), moment(approval.expires_at),
  ];
}

function program(approval) {
  return [
    approval.code !== null ? listing(approval.code, approval.findings) : [
      faint(approval.code_hash ? "The code is shown as long as it waits." : "There is no code, only a command."),
      h("ul", {}, approval.findings.map((one) => h("li", {}, badge(one.tier), ` line ${one.line}: ${one.reason}`))),
    ],
    facts({
      Project: approval.project_id,
      "Asked by": approval.asked_by,
      Language: approval.language,
      Command: approval.command && h("code", {}, JSON.stringify(approval.command)),
      Arguments: approval.args.length > 0 && h("code", {}, JSON.stringify(approval.args)),
      Folder: approval.working_dir,
      "Names of variables": value(approval.env_keys),
      Packages: approval.packages?.length > 0 && h("code", {}, JSON.stringify(approval.packages)),
      Files: digests(approval.files),
      Inputs: digests(approval.inputs),
      Session: approval.session_id,
      "In the session": digests(approval.session_files ?? {}),
      Input: approval.stdin && h("pre", { class: "text" }, approval.stdin),
      Skill: approval.skill_id,
      Tool: approval.tool,
      Code: approval.code_hash && h("code", {}, approval.code_hash),
      Digest: h("code", {}, approval.digest),
    }),
  ];
}

function digests(files) {
  const rows = Object.entries(files).map(([name, digest]) => h("li", {}, h("code", {}, `${name} ${short(digest)}`)));
  return rows.length > 0 && h("ul", {}, rows);
}

function decisionForm(approval, signal, again) {
  const reason = h("textarea", { rows: 2, maxlength: 2000 });
  const days = h("input", { type: "number", min: 0, max: 365, step: "any", value: "0" });
  // The digest of what is on the page goes along: it holds for this and nothing else.
  const decide = (word, remember, told) => careful(async () => {
    const body = { decision: word, reason: reason.value, digest: approval.digest, remember_days: remember() };
    await post(path(approval.id), body, signal);
    say(told);
    await again();
  });
  const approve = decide("approve", () => Number(days.value), "Approved; the run goes on.");
  const deny = decide("deny", () => 0, "Denied; the run will not happen.");
  return h("form", { class: "decision", onsubmit: (event) => event.preventDefault() },
    field("Reason", reason),
    field("Also for the same run again, for so many days", days),
    h("p", { class: "actions" },
      button("Approve", approve, { class: "main" }),
      button("Deny", deny, { class: "danger" })));
}
