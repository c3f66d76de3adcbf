// A shell in a session: what is typed goes to it as it is typed, what it shows is kept on a screen.

import { sessionPath, socket } from "./api.js";
import { faint, h, put } from "./elements.js";
import { Screen } from "./screen.js";

const ROWS = 24;
const SHOW_AGAIN_MS = 40;
const MOST_HISTORY = 1000;
const NOWHERE = -1;
// The browser tells no page why.
const REFUSED = "The service opened no terminal; its policy may want a person's yes to a shell.";
const KEYS = {
  Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", ArrowUp: "\x1b[A", ArrowDown: "\x1b[B", ArrowRight: "\x1b[C",
  ArrowLeft: "\x1b[D", Home: "\x1b[H", End: "\x1b[F", Delete: "\x1b[3~", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
};

export function openTerminal(place, sessionId, signal, ended) {
  const live = h("div", {});
  const history = h("div", {});
  const role = { role: "textbox", "aria-multiline": "true", "aria-label": "Terminal" };
  const pane = h("pre", { class: "output terminal", tabindex: "0", ...role }, history, live);
  put(place, pane, faint("Shift+Tab leaves the terminal."));

  const screen = new Screen(ROWS, columnsIn(pane));
  const line = socket(`${sessionPath(sessionId, "terminal")}?rows=${screen.rows}&columns=${screen.columns}&term=xterm`);
  const decoder = new TextDecoder();
  const encoder = new TextEncoder();
  let early = "";
  let wasOpen = false;
  let timer = null;
  const type = (text) => {
    if (line.readyState === WebSocket.OPEN) line.send(encoder.encode(text));
    else early += text;
  };

  line.addEventListener("open", () => { wasOpen = true; type(early); });
  line.addEventListener("message", ({ data }) => {
    if (typeof data === "string") return;
    screen.write(decoder.decode(data, { stream: true }));
    timer ??= setTimeout(() => { timer = null; show(screen, history, live, pane); }, SHOW_AGAIN_MS);
  });
  line.addEventListener("close", ({ reason }) => {
    if (!signal.aborted) ended(reason || (wasOpen ? "The terminal is closed." : REFUSED));
  });
  signal.addEventListener("abort", () => line.close(), { once: true });
  pane.addEventListener("keydown", (event) => {
    const text = typed(event);
    if (!text) return;
    event.preventDefault();
    type(text);
  });
  pane.addEventListener("paste", (event) => {
    event.preventDefault();
    type(event.clipboardData.getData("text/plain").replaceAll(/\r?\n/g, "\r"));
  });
  pane.focus();
}

// What a key means to a program; nothing if it is the browser's.
function typed(event) {
  const { key, ctrlKey, altKey, metaKey, shiftKey } = event;
  const copies = ctrlKey && key === "c" && !getSelection().isCollapsed;
  if (metaKey || event.isComposing || copies || (key === "Tab" && shiftKey) || (ctrlKey && shiftKey)) return "";
  if (ctrlKey) return /^[a-z@[\\\]^_]$/.test(key) ? String.fromCharCode(key.toUpperCase().charCodeAt(0) & 31) : "";
  const text = Object.hasOwn(KEYS, key) ? KEYS[key] : [...key].length === 1 ? key : "";
  return altKey && text ? `\x1b${text}` : text;
}

function columnsIn(pane) {
  const probe = h("span", {}, "0".repeat(100));
  pane.append(probe);
  const width = probe.getBoundingClientRect().width / 100;
  probe.remove();
  return Math.min(Math.max(Math.floor((pane.clientWidth - 40) / width), 40), 160);
}

function show(screen, history, live, pane) {
  history.append(...screen.scrolledOff.splice(0).slice(-MOST_HISTORY).map((line) => row(line)));
  while (history.childElementCount > MOST_HISTORY) history.firstElementChild.remove();
  const cursorIn = (index) => (screen.cursorIsShown && index === screen.row ? screen.column : NOWHERE);
  live.replaceChildren(...screen.lines.map((line, index) => row(line, cursorIn(index))));
  pane.scrollTop = pane.scrollHeight;
}

// Cells of one style in one element.
function row(line, cursor = NOWHERE) {
  const pieces = [];
  line.forEach(({ text, style }, column) => {
    const shown = column === cursor ? `${style} cursor` : style;
    const last = pieces.at(-1);
    if (last && last.style === shown) last.text += text;
    else pieces.push({ text, style: shown });
  });
  return h("div", {}, pieces.map(({ text, style }) => h("span", { class: style }, text)));
}
