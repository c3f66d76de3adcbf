// How the service is: its engine, what runs and waits, its counters, its policy, its chain of receipts.

import { call, every, get, query } from "./api.js";
import { facts, h, list, put, renew, section, table, to } from "./elements.js";
import { careful, field, submit } from "./forms.js";
import { grantTable } from "./grant.js";
import { failed } from "./notice.js";
import { chainCheck } from "./receipt.js";
import { badge, duration, short, value } from "./words.js";

const LOOK_AGAIN_MS = 3000;
const JAR_HEADS = ["Run or session", "Project", "Processor", "Memory", "Processes", ""];
const SAMPLE = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

export async function show(place, { signal }) {
  const state = h("div", {});
  put(place, h("h1", {}, "Service"), state, section("Policy", explain(signal)), section("Receipts", chainCheck(signal)));
  await every(LOOK_AGAIN_MS, signal, async () => {
    const asked = [get("/sandbox/health", signal), get("/sandbox/usage", signal), call("GET", "/metrics", { signal })];
    const [health, { usage }, metrics] = await Promise.all(asked);
    const counted = samples(await metrics.text());
    renew(state, [health, usage, counted], () => [healthOf(health), jarsOf(usage), countersOf(counted)]);
  }, failed);
}

function healthOf(health) {
  return [
    h("p", { class: "actions" }, badge(health.status), `belljar ${health.version}`),
    facts({
      Running: `${health.running} of ${health.max_concurrent_execs}`,
      Waiting: `${health.waiting} of ${health.max_queued_execs}`,
      Engine: health.engine,
      Workspace: health.workspace_writable ? "can be written" : "cannot be written",
    }),
    health.engines.map((engine) => section(`Engine ${engine.name}`,
      table("Checks", ["Check", "", "What", "Mend it"], engine.checks.map((check) => [
        check.name, badge(check.ok ? "ok" : check.required ? "missing" : "weaker"), check.detail,
        !check.ok && check.fix,
      ])))),
  ];
}

function jarsOf(jars) {
  const rows = jars.map((jar) => [
    to(`${jar.kind}s`, jar.id, short(jar.id)), jar.project_id, `${jar.cpu_usage_percent} %`,
    `${jar.memory_usage_mb} of ${jar.memory_limit_mb} MB`, `${jar.pids_current} of ${jar.pids_limit}`, jar.alerts.map(badge),
  ]);
  return section("Jars in use", list("Jars in use", JAR_HEADS, rows));
}

function countersOf(all) {
  const of = (name) => all.filter((one) => one.name === name);
  const sum = (name) => total(of(name));
  const mean = (name) => (sum(`${name}_count`) ? duration((sum(`${name}_sum`) / sum(`${name}_count`)) * 1000) : "–");
  const byStatus = Map.groupBy(of("sandbox_executions_total"), (one) => one.labels.status);
  const ends = [...byStatus].map(([status, found]) => [badge(status), String(total(found))]);
  const pool = of("sandbox_pool_size").map((one) => `${one.labels.status} ${one.value}`);
  return section("Since the start",
    facts({
      "Jars in the pool": value(pool),
      "A run takes, on average": mean("sandbox_execution_duration_seconds"),
      "A jar is there after, on average": mean("sandbox_jar_start_seconds"),
    }),
    list("Runs by their end", ["End", "Runs"], ends));
}

function total(found) {
  return found.reduce((sum, one) => sum + one.value, 0);
}

// The text form of Prometheus.
function samples(text) {
  const lines = text.split("\n").map((line) => SAMPLE.exec(line)).filter(Boolean);
  return lines.map(([, name, labels = "", number]) => ({ name, value: Number(number), labels: labelsIn(labels) }));
}

function labelsIn(text) {
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, label]) => [name, label]));
}

function explain(signal) {
  const role = h("input", {});
  const tool = h("input", {});
  const answer = h("div", { "aria-live": "polite" });
  const ask = careful(async () => {
    const decision = await get(query("/policy/explain", { role: role.value, tool: tool.value }), signal);
    put(answer, grantTable(decision.fields));
  });
  return [
    h("form", { class: "filters", onsubmit: ask },
      field("Role", role), field("Tool", tool), submit("What would be granted")),
    answer,
  ];
}
