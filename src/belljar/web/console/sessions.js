// Sessions: which there are, and one of them with a console, its files and its clock.

import { call, every, get, post, query, sessionPath, told } from "./api.js";
import { button, facts, field, h, put, renew, section, table, to } from "./elements.js";
import { careful, failed, say } from "./notice.js";
import { Output } from "./output.js";
import { isSmall, preview, save } from "./preview.js";
import { follow } from "./run.js";
import { openTerminal } from "./terminal.js";
import { badge, moment, short, size, value } from "./words.js";

const LOOK_AGAIN_MS = 3000;
const HEADS = ["Session", "Project", "State", "Runs", "Used", "Until"];
const KINDS = { "python, variables kept": { context: "console" }, bash: { language: "bash" }, javascript: { language: "javascript" } };

export async function show(place, { signal }) {
  const project = h("input", { placeholder: "default" });
  const list = h("div", {});
  const start = careful(async () => {
    const session = await post("/sandbox/sessions", project.value ? { project_id: project.value } : {}, signal);
    location.hash = `#/sessions/${session.session_id}`;
  });
  put(place, h("h1", {}, "Sessions"),
    h("form", { class: "filters", onsubmit: start }, field("Project", project), h("button", { type: "submit" }, "Start a session")), list);
  await every(LOOK_AGAIN_MS, signal, async () => {
    const { sessions } = await get("/sandbox/sessions?ended=true", signal);
    renew(list, sessions, () => (sessions.length ? table("Sessions", HEADS, sessions.map(rowOf)) : h("p", { class: "faint" }, "None.")));
  }, failed);
}

export async function showOne(place, { id, signal }) {
  const head = h("div", {});
  const look = async () => {
    const session = await get(sessionPath(id), signal);
    put(head, headOf(session, signal, look));
    return session;
  };
  const session = await look();
  put(place, h("h1", {}, "Session ", h("code", {}, id)), head,
    isOpen(session) && [
      section("Console", consoleOf(id, signal, look)),
      section("Terminal", terminalOf(id, signal)),
      section("Files", await filesOf(id, signal)),
    ]);
}

function isOpen(session) {
  return session.state === "ready" || session.state === "paused";
}

function rowOf(session) {
  return [
    to("sessions", session.session_id, short(session.session_id)), session.project_id, badge(session.state),
    String(session.runs), moment(session.last_used), moment(session.expires_at),
  ];
}

function headOf(session, signal, look) {
  const path = (verb) => sessionPath(session.session_id, verb);
  const after = (work, text) => careful(async () => { await work(); say(text); await look(); });
  return [
    h("p", { class: "actions" }, badge(session.state), isOpen(session) && [
      session.state === "paused"
        ? button("Resume", after(() => post(path("resume"), {}, signal), "It goes on."))
        : button("Pause", after(() => post(path("pause"), {}, signal), "Every process in it stands still.")),
      button("An hour more", after(() => post(path("extend"), { seconds: 3600 }, signal), "It lives an hour from now.")),
      button("Interrupt", after(() => post(path("interrupt"), {}, signal), "What runs was interrupted.")),
      button("Close", after(() => call("DELETE", sessionPath(session.session_id), { signal }), "The session is over."), { class: "danger" }),
    ]),
    facts({
      Project: session.project_id, Reason: session.reason, Engine: session.engine, Runs: String(session.runs),
      Contexts: value(session.contexts), "Ends if idle": moment(session.expires_at), "Ends anyway": moment(session.ends_at),
    }),
  ];
}

function terminalOf(id, signal) {
  const place = h("div", {});
  const open = button("Open a terminal", () => {
    open.hidden = true;
    openTerminal(place, id, signal, (reason) => {
      say(reason);
      open.hidden = false;
    });
  });
  return [open, place];
}

// A few lines at a time, each of them a run of its own.
function consoleOf(id, signal, look) {
  const output = new Output("Console");
  const results = h("div", {});
  const kind = h("select", {}, Object.keys(KINDS).map((name) => h("option", {}, name)));
  const code = h("textarea", { rows: 3, spellcheck: "false", class: "code", required: true });
  const run = careful(async () => {
    const body = { code: code.value, ...KINDS[kind.value] };
    output.remark(`> ${code.value}`);
    code.value = "";
    for await (const event of told("POST", sessionPath(id, "run"), { body, signal })) {
      if (event.kind === "error") throw new Error(event.data.error.message);
      follow(event, output, results);
    }
    await look();
  });
  return [output.element, results, h("form", { onsubmit: run, onkeydown: submitOnCtrlEnter }, field("Run as", kind), field("Code", code, "Ctrl+Enter runs it"), h("button", { type: "submit", class: "main" }, "Run"))];
}

export function submitOnCtrlEnter(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    const submit = event.currentTarget.querySelector("[type=submit]");
    if (!submit.disabled) event.currentTarget.requestSubmit(submit);
  }
}

async function filesOf(id, signal) {
  const list = h("div", {});
  const place = h("div", { class: "preview", "aria-live": "polite" });
  const upload = h("input", { type: "file" });
  const address = (path) => query(sessionPath(id, "files", "content"), { path });
  const look = async () => {
    const { files, complete } = await get(query(sessionPath(id, "files"), { depth: 8 }), signal);
    put(list, files.length ? table("Files", ["Path", "Kind", "Size", ""], files.map(row)) : h("p", { class: "faint" }, "None."), !complete && h("p", { class: "faint" }, "There are more."));
  };
  const bytesOf = async (path) => (await call("GET", address(path), { signal })).blob();
  const row = (file) => [h("code", {}, file.path), file.kind, size(file.size), h("span", { class: "actions" },
    file.kind === "regular" && isSmall(file.size) && button("Look", careful(async () => {
      const bytes = new Uint8Array(await (await bytesOf(file.path)).arrayBuffer());
      put(place, h("h3", {}, file.path), preview(file.path, "", bytes));
    }), { "aria-label": `Look at ${file.path}` }),
    file.kind === "regular" && button("Save", careful(async () => save(file.path, await bytesOf(file.path))), { "aria-label": `Save ${file.path}` }),
    button("Remove", careful(async () => { await call("DELETE", query(sessionPath(id, "files"), { path: file.path }), { signal }); await look(); }), { class: "danger", "aria-label": `Remove ${file.path}` }))];
  const send = careful(async () => {
    const [file] = upload.files;
    if (!file) throw new Error("choose a file first");
    await call("PUT", address(file.name), { body: file, signal });
    await look();
  });
  await look().catch(failed);
  return [
    list, place,
    h("form", { class: "filters", onsubmit: send }, field("A file for it", upload), h("button", { type: "submit" }, "Send"), button("Look again", careful(look))),
  ];
}
