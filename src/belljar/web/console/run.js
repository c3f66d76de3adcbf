// One run: what it prints as it prints it, what it was granted, what it used and left, and its receipt.

import { Refused, eventsOf, every, execPath, get, post, query } from "./api.js";
import { artifactList } from "./artifacts.js";
import { listing } from "./code.js";
import { facts, h, put, section, to } from "./elements.js";
import { button, careful } from "./forms.js";
import { snapshotTable } from "./grant.js";
import { failed, say } from "./notice.js";
import { receiptView } from "./receipt.js";
import { Transcript } from "./transcript.js";
import { UsageOverTime, usageChart } from "./usage.js";
import { badge, decision, duration, moment, outcome, value } from "./words.js";

const LOOK_AGAIN_MS = 1000;
const OVER = new Set(["finished", "refused"]);
const CHANGES = new Set(["pending_approval", "queued", "running"]);

export async function show(place, { id, signal }) {
  const transcript = new Transcript("Output");
  const head = h("div", {});
  const rest = h("div", {});
  const usage = new UsageOverTime();
  put(place, h("h1", {}, "Run ", h("code", {}, id)), head, section("Output", transcript.elements), rest);

  const cancel = careful(async () => {
    await post(execPath(id, "cancel"), {}, signal);
    say("The run is being ended.");
  });
  const look = async () => {
    const run = await get(execPath(id), signal);
    put(head, headOf(run, run.status === "pending_approval" && await approvalOf(run, signal), cancel));
    put(rest, await restOf(run, usage, signal));
    return run;
  };

  let run = await look();
  if (run.status === "refused") return;
  const over = new AbortController();
  for await (const event of eventsOf(id, signal)) {
    transcript.follow(event);
    if (OVER.has(run.status)) continue;
    if (event.kind === "running") watch(run, usage, AbortSignal.any([signal, over.signal]));
    if (CHANGES.has(event.kind)) run = await look();
  }
  over.abort();
  if (!OVER.has(run.status)) await look();
}

// A run in a session uses the session's jar.
function watch(run, usage, signal) {
  return every(LOOK_AGAIN_MS, signal, async () => {
    const jars = (await get("/sandbox/usage", signal)).usage;
    const jar = jars.find((one) => one.id === run.exec_id || one.id === run.session_id);
    if (jar) usage.add(jar);
  }, failed);
}

async function approvalOf(run, signal) {
  const { approvals } = await get(query("/approvals", { project_id: run.project_id }), signal);
  return approvals.find((one) => one.exec_id === run.exec_id);
}

function headOf(run, approval, cancel) {
  return [
    h("p", { class: "actions" }, badge(outcome(run)),
      approval && to("approvals", approval.id, "Its code, and the decision"),
      !OVER.has(run.status) && button("Cancel", cancel, { class: "danger" })),
    run.error_code && h("p", { class: "fault" }, `${run.error_code}: ${run.error_reason ?? "the operator knows why"}`),
    facts({
      Project: run.project_id,
      Request: h("code", {}, run.request_id),
      Program: h("code", {}, [run.language, run.cmd, ...run.args].filter(Boolean).join(" ")),
      Folder: run.cwd,
      "Names of variables": value(run.env_keys),
      Packages: run.packages.length > 0 && run.packages.map((one) => `${one.name} ${one.version}`).join(", "),
      Code: run.code_hash && h("code", {}, run.code_hash),
      Skill: run.skill_id,
      Tool: run.tool,
      Session: run.session_id && to("sessions", run.session_id, run.session_id),
      "Asked by": run.token_id,
      Risk: run.risk.tier && [badge(run.risk.tier), " ", findings(run.risk)],
      Approval: run.approval.decision && decision(run.approval.decision, run.approval),
      Accepted: moment(run.accepted_at),
      Took: duration(run.duration_ms),
      Engine: run.engine,
    }),
  ];
}

function findings(risk) {
  return risk.findings?.map((one) => `line ${one.line}: ${one.reason}`).join("; ");
}

// Nothing, where there was a command only, where it is not kept any more, or where it is not for this token.
async function codeOf(run, signal) {
  if (!run.code_hash || run.status !== "finished") return null;
  try {
    return (await get(execPath(run.exec_id, "code"), signal)).code;
  } catch (error) {
    if (error instanceof Refused) return null;
    throw error;
  }
}

async function restOf(run, usage, signal) {
  const code = await codeOf(run, signal);
  return [
    code !== null && section("Code", listing(code, run.risk.findings)),
    section("Usage", usage.element, usageChart(run)),
    section("Artifacts", artifactList(run, signal)),
    section("Granted", snapshotTable(run.policy_snapshot)),
    section("Receipt", await receiptView(run, signal)),
  ];
}
