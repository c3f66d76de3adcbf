// The service as the console sees it: the public API, with the caller's token in a header and nowhere else.

const KEY = "belljar.token";
const RETRY_MS = 1000;

let token = sessionStorage.getItem(KEY);
let onUnknownToken = () => {};

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the service answered ${status}`);
    this.status = status;
    this.code = error?.code;
    this.field = error?.field;
  }
}

export const hasToken = () => token !== null;

export function useToken(text) {
  token = text;
  sessionStorage.setItem(KEY, text);
}

export function forgetToken() {
  token = null;
  sessionStorage.removeItem(KEY);
}

export function whenTokenIsUnknown(tell) {
  onUnknownToken = tell;
}

export async function call(method, path, { body, signal, headers = {} } = {}) {
  const given = { Authorization: `Bearer ${token}`, ...headers };
  const isFile = body instanceof Blob;
  if (body !== undefined) given["Content-Type"] = isFile ? "application/octet-stream" : "application/json";
  const answer = await fetch(path.slice(1), {
    method, signal, headers: given, body: body === undefined || isFile ? body : JSON.stringify(body),
    credentials: "omit", redirect: "error", cache: "no-store",
  });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  if (answer.status === 401) onUnknownToken();
  throw new Refused(answer.status, told?.error);
}

export async function get(path, signal) {
  return (await call("GET", path, { signal })).json();
}

export async function post(path, body, signal) {
  return (await call("POST", path, { body, signal })).json();
}

// A browser lets a page choose no header for a WebSocket; the token is among the protocols that it offers.
export function socket(path) {
  const address = new URL(path.slice(1), document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");
  const bytes = new TextEncoder().encode(token);
  const text = btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const line = new WebSocket(address, ["belljar.terminal", `belljar.bearer.${text}`]);
  line.binaryType = "arraybuffer";
  return line;
}

export function query(path, asked) {
  const given = Object.entries(asked).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export const execPath = (id, ...rest) => ["/sandbox/execs", encodeURIComponent(id), ...rest].join("/");
export const artifactPath = (id, path) => execPath(id, "artifacts", ...path.split("/").map(encodeURIComponent));
export const sessionPath = (id, ...rest) => ["/sandbox/sessions", encodeURIComponent(id), ...rest].join("/");

// A request whose answer is told as events, each as { id, kind, data }.
export async function* told(method, path, { body, signal, after } = {}) {
  const headers = { Accept: "text/event-stream" };
  if (after) headers["Last-Event-ID"] = String(after);
  const answer = await call(method, path, { body, signal, headers });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = read(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// All events of a run, also when the connection breaks in between.
export async function* eventsOf(execId, signal) {
  let after = 0;
  while (!signal.aborted) {
    try {
      for await (const event of told("GET", execPath(execId, "events"), { signal, after })) {
        after = event.id;
        yield event;
      }
      return;
    } catch (error) {
      if (signal.aborted || error instanceof Refused) throw error;
      await pause(RETRY_MS, signal);
    }
  }
}

export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

// Now and then, as long as somebody looks; a failure is told and does not end it.
export async function every(ms, signal, work, failed) {
  while (!signal.aborted) {
    if (!document.hidden) await work().catch((error) => signal.aborted || failed(error));
    await pause(ms, signal);
  }
}

function read(block) {
  const event = { id: 0, kind: "", data: null };
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) event.id = Number(line.slice(4));
    else if (line.startsWith("event: ")) event.kind = line.slice(7);
    else if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
  }
  return event.kind ? event : null;
}
