// Sessions: which there are, and one of them with a console, a terminal, its files and its clock.

import { call, every, get, post, sessionPath, told } from "./api.js";
import { facts, h, list, put, renew, section, to } from "./elements.js";
import { button, careful, choice, codeField, field, submit, submitOnCtrlEnter } from "./forms.js";
import { failed, say } from "./notice.js";
import { sessionFiles } from "./sessionfiles.js";
import { openTerminal } from "./terminal.js";
import { Transcript } from "./transcript.js";
import { badge, moment, short, value } from "./words.js";

const LOOK_AGAIN_MS = 3000;
const HEADS = ["Session", "Project", "State", "Runs", "Used", "Until"];
const KINDS = {
  "python, variables kept": { context: "console" },
  bash: { language: "bash" },
  javascript: { language: "javascript" },
};

export async function show(place, { signal }) {
  const project = h("input", { placeholder: "default" });
  const known = h("div", {});
  const start = careful(async () => {
    const session = await post("/sandbox/sessions", project.value ? { project_id: project.value } : {}, signal);
    location.hash = `#/sessions/${session.session_id}`;
  });
  put(place, h("h1", {}, "Sessions"),
    h("form", { class: "filters", onsubmit: start }, field("Project", project), submit("Start a session")), known);
  await every(LOOK_AGAIN_MS, signal, async () => {
    const { sessions } = await get("/sandbox/sessions?ended=true", signal);
    renew(known, sessions, () => list("Sessions", HEADS, sessions.map(rowOf)));
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
      section("Files", await sessionFiles(id, signal)),
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
  const doing = (text, work) => careful(async () => {
    await work();
    say(text);
    await look();
  });
  const tell = (verb, text, body = {}) => doing(text, () => post(sessionPath(session.session_id, verb), body, signal));
  const close = () => call("DELETE", sessionPath(session.session_id), { signal });
  return [
    h("p", { class: "actions" }, badge(session.state), isOpen(session) && [
      session.state === "paused"
        ? button("Resume", tell("resume", "It goes on."))
        : button("Pause", tell("pause", "Every process in it stands still.")),
      button("An hour more", tell("extend", "It lives an hour from now.", { seconds: 3600 })),
      button("Interrupt", tell("interrupt", "What runs was interrupted.")),
      button("Close", doing("The session is over.", close), { class: "danger" }),
    ]),
    facts({
      Project: session.project_id,
      Reason: session.reason,
      Engine: session.engine,
      Runs: String(session.runs),
      Contexts: value(session.contexts),
      "Ends if idle": moment(session.expires_at),
      "Ends anyway": moment(session.ends_at),
    }),
  ];
}

// A few lines at a time, each of them a run of its own.
function consoleOf(id, signal, look) {
  const transcript = new Transcript("Console");
  const kind = choice(Object.keys(KINDS));
  const code = codeField(3);
  const run = careful(async () => {
    const body = { code: code.value, ...KINDS[kind.value] };
    transcript.remark(`> ${code.value}`);
    code.value = "";
    for await (const event of told("POST", sessionPath(id, "run"), { body, signal })) {
      if (event.kind === "error") throw new Error(event.data.error.message);
      transcript.follow(event);
    }
    await look();
  });
  return [
    transcript.elements,
    h("form", { onsubmit: run, onkeydown: submitOnCtrlEnter },
      field("Run as", kind), field("Code", code, "Ctrl+Enter runs it"), submit("Run", { class: "main" })),
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
