// Which view is shown, and to whom: the address after `#` names it, and without a token there is only the door.

import { every, forgetToken, get, hasToken, useToken, whenTokenIsUnknown } from "./api.js";
import * as approvals from "./approvals.js";
import * as catalogue from "./catalogue.js";
import { faint, h, put } from "./elements.js";
import { careful, field, submit } from "./forms.js";
import { failed, quiet } from "./notice.js";
import * as pad from "./pad.js";
import * as run from "./run.js";
import * as runs from "./runs.js";
import * as service from "./service.js";
import * as sessions from "./sessions.js";

const LOOK_AGAIN_MS = 5000;
const FIRST = "runs";
const VIEWS = {
  runs: [runs.show, run.show],
  approvals: [approvals.show, approvals.showOne],
  sessions: [sessions.show, sessions.showOne],
  catalogue: [catalogue.show],
  pad: [pad.show],
  service: [service.show],
};

const content = document.getElementById("content");
const views = document.getElementById("views");
const leave = document.getElementById("leave");
const waiting = document.getElementById("waiting");
let shown = new AbortController();
let counting = new AbortController();

async function show() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  views.hidden = leave.hidden = !hasToken();
  if (!hasToken()) return put(content, door());
  const [path, asked = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, id] = path.split("/");
  const view = Object.hasOwn(VIEWS, name) ? name : FIRST;
  const [list, one] = VIEWS[view];
  for (const link of views.children) {
    if (link.hash === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  quiet();
  put(content, faint("…"));
  try {
    const given = { id: id && decodeURIComponent(id), asked: new URLSearchParams(asked), signal };
    await (id && one ? one : list)(content, given);
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
}

function door() {
  const token = h("input", { type: "password", autocomplete: "off", required: true });
  const enter = careful(async () => {
    useToken(token.value.trim());
    await get("/sandbox/execs?limit=1");
    count();
    show();
  });
  return h("form", { class: "door", onsubmit: enter },
    h("h1", {}, "belljar"),
    h("p", {},
      "A token opens the console. The operator's lies in the file ", h("code", {}, "token"), " of the data directory; ",
      h("code", {}, "belljar token create"), " makes others."),
    field("Token", token), submit("Log in", { class: "main" }));
}

function count() {
  counting.abort();
  counting = new AbortController();
  const { signal } = counting;
  return every(LOOK_AGAIN_MS, signal, async () => {
    const found = await approvals.waitingCount(signal);
    put(waiting, String(found));
    waiting.hidden = found === 0;
    waiting.setAttribute("aria-label", `${found} waiting`);
  }, () => {});
}

function goOut() {
  forgetToken();
  counting.abort();
  show();
}

leave.addEventListener("click", goOut);
whenTokenIsUnknown(goOut);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
window.addEventListener("hashchange", () => {
  show();
  content.focus();
});
if (hasToken()) count();
show();
