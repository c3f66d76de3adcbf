// How times, sizes and states are said to people.

import { h } from "./elements.js";

const GOOD = new Set(["exited 0", "ok", "approved", "ready"]);
const GOING = new Set(["running", "queued", "pending_approval", "waiting", "paused", "low", "safe", "medium"]);

export function moment(iso) {
  if (!iso) return "–";
  const at = new Date(iso);
  const today = at.toDateString() === new Date().toDateString();
  return h("time", { datetime: iso, title: iso }, today ? at.toLocaleTimeString() : at.toLocaleString());
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
}

export function size(bytes) {
  for (const [unit, one] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= one) return `${(bytes / one).toFixed(1)} ${unit}`;
  }
  return `${bytes} bytes`;
}

export function short(id) {
  return id.length > 18 ? `${id.slice(0, 14)}…` : id;
}

export function value(given) {
  if (given === null || given === undefined) return "–";
  if (Array.isArray(given)) return given.length ? given.map(value).join(", ") : "none";
  if (typeof given === "object") return Object.entries(given).map(([name, one]) => `${name} ${value(one)}`).join(", ");
  return String(given);
}

// A state in words; its colour only repeats them.
export function badge(state) {
  const tone = GOOD.has(state) ? "good" : GOING.has(state) ? "going" : "bad";
  return h("span", { class: `badge ${tone}` }, String(state).replaceAll("_", " "));
}

export function decision(state, { by, reason }) {
  return reason ? `${state} by ${by}: ${reason}` : `${state} by ${by}`;
}

export function outcome(run) {
  if (run.status !== "finished") return run.status;
  return run.verdict === "exited" ? `exited ${run.exit_code}` : run.verdict;
}
