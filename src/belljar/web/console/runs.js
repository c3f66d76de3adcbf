// The list of runs, newest first, a page at a time; the first page is looked at again and again.

import { every, get, query } from "./api.js";
import { h, put, renew, to } from "./elements.js";
import { button, choice, field, submit } from "./forms.js";
import { failed } from "./notice.js";
import { badge, duration, moment, outcome, short } from "./words.js";

const LOOK_AGAIN_MS = 2000;
const SEARCH_AGAIN_MS = 15_000;
const PAGE = 50;
const SEARCHED_AT_ONCE = 2000;
const SEARCH_PAGE = 200;
const STATUSES = ["", "running", "queued", "pending_approval", "finished", "refused"];
const SEARCHED = [
  "exec_id", "request_id", "project_id", "cmd", "skill_id", "task_id", "verdict", "error_reason", "language", "tool",
];
const MOST_COMMAND = 120;
const HEADS = ["Run", "Project", "State", "What", "Accepted", "Took"];

export async function show(place, { asked, signal }) {
  const filters = Object.fromEntries(["project_id", "status", "text"].map((name) => [name, asked.get(name) ?? ""]));
  const cursors = [null];
  let next = null;
  let at = 0;

  const rows = h("tbody", {});
  const count = h("p", { class: "faint", role: "status" });
  const newer = button("Newer", () => turn(-1), { disabled: true });
  const older = button("Older", () => turn(1), { disabled: true });

  async function turn(by) {
    if (by > 0) cursors[at + 1] = next;
    at += by;
    await look().catch(failed);
    document.getElementById("content").focus();
  }

  async function look() {
    const from = at;
    const found = await search(filters, cursors[from], signal);
    if (from !== at || signal.aborted) return;
    next = found.cursor;
    put(count, told(found, at, filters.text));
    newer.disabled = at === 0;
    older.disabled = next === null;
    renew(rows, found.runs, (runs) => runs.map(rowOf));
  }

  put(place, h("h1", {}, "Runs"), filterForm(filters),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, h("table", { class: "runs" },
      h("thead", {}, h("tr", {}, HEADS.map((head) => h("th", { scope: "col" }, head)))),
      rows)),
    h("div", { class: "actions" }, newer, older, count));
  await every(filters.text ? SEARCH_AGAIN_MS : LOOK_AGAIN_MS, signal, async () => { if (at === 0) await look(); }, failed);
}

// One page. With a text to search for, as many runs as it takes to fill it, within reason.
async function search({ text, ...asked }, cursor, signal) {
  if (!text) {
    const page = await get(query("/sandbox/execs", { ...asked, limit: PAGE, cursor }), signal);
    return { runs: page.execs, cursor: page.cursor, searched: page.execs.length };
  }
  const wanted = text.toLowerCase();
  const found = { runs: [], cursor, searched: 0 };
  do {
    const page = await get(query("/sandbox/execs", { ...asked, limit: SEARCH_PAGE, cursor: found.cursor }), signal);
    found.runs.push(...page.execs.filter((run) => SEARCHED.some((name) => run[name]?.toLowerCase().includes(wanted))));
    found.cursor = page.cursor;
    found.searched += page.execs.length;
  } while (found.cursor && found.runs.length < PAGE && found.searched < SEARCHED_AT_ONCE);
  return found;
}

function told({ runs, searched, cursor }, at, text) {
  if (text) return `${runs.length} of ${searched} runs${cursor ? "; older ones were not searched" : ""}`;
  return `${runs.length} runs, page ${at + 1}${cursor ? "" : ", the last"}`;
}

function filterForm(filters) {
  const inputs = {
    project_id: h("input", { value: filters.project_id }),
    status: choice(STATUSES, filters.status),
    text: h("input", { type: "search", value: filters.text }),
  };
  const apply = (event) => {
    event.preventDefault();
    const wanted = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]));
    location.hash = query("#/runs", wanted);
  };
  return h("form", { class: "filters", onsubmit: apply },
    field("Project", inputs.project_id), field("State", inputs.status), field("Text", inputs.text),
    submit("Filter"));
}

function rowOf(run) {
  return h("tr", {},
    h("td", {}, to("runs", run.exec_id, short(run.exec_id))),
    h("td", {}, run.project_id),
    h("td", {}, badge(outcome(run))),
    h("td", { class: "what" }, whatOf(run)),
    h("td", {}, moment(run.accepted_at)),
    h("td", {}, duration(run.duration_ms)));
}

function whatOf(run) {
  const command = [run.cmd, ...run.args].filter(Boolean).join(" ").slice(0, MOST_COMMAND);
  return [run.skill_id ?? run.tool, run.language, command].filter(Boolean).join(" · ");
}
