// A file that a program left, as something to look at: a picture, a table, text. Never as something that runs:
// HTML and SVG are text here, and only four kinds of picture are pictures.

import { faint, h, put, table } from "./elements.js";
import { size } from "./words.js";

// By the bytes that they begin with.
const PICTURES = new Map([
  ["image/png", [0x89, 0x50, 0x4e, 0x47]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
]);
const MOST_BYTES = 8 << 20;
const MOST_CHARACTERS = 200_000;
const MOST_ROWS = 200;
const MOST_COLUMNS = 50;

export const isSmall = (bytes) => bytes <= MOST_BYTES;

// Of a file in a session nobody has said what it is.
export function preview(path, bytes, mime = pictureIn(bytes) ?? "") {
  const kind = mime.split(";")[0].trim();
  if (PICTURES.has(kind)) return picture(kind, bytes, path);
  const text = asText(bytes);
  if (text === null) return faint(`${size(bytes.length)} that are not text.`);
  if (kind === "application/json" || path.endsWith(".json")) return json(text);
  if (kind === "text/csv" || path.endsWith(".csv")) return csv(text);
  return plain(text);
}

// What a cell of a session showed: the first form of it that can be shown.
export function shown(forms) {
  const bytes = fromBase64(forms["image/png"]);
  if (bytes) return picture("image/png", bytes, "shown by the program");
  const text = forms["text/plain"];
  return plain(typeof text === "string" ? text : JSON.stringify(forms, null, 2));
}

export function save(path, blob) {
  const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  const link = h("a", { download: path.split("/").pop() });
  link.href = address;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function pictureIn(bytes) {
  return [...PICTURES].find(([, first]) => first.every((one, index) => bytes[index] === one))?.[0];
}

function picture(kind, bytes, name) {
  if (pictureIn(bytes) !== kind) return faint(`This is not the ${kind} that it says it is.`);
  const address = URL.createObjectURL(new Blob([bytes], { type: kind }));
  const place = h("figure", { class: "picture" });
  const release = () => URL.revokeObjectURL(address);
  const broken = () => { release(); put(place, "The picture cannot be read."); };
  return put(place, h("img", { src: address, alt: name, onload: release, onerror: broken }));
}

function json(text) {
  try {
    return plain(JSON.stringify(JSON.parse(text), null, 2));
  } catch {
    return plain(text);
  }
}

function csv(text) {
  const [heads = [], ...rows] = parsed(text, MOST_ROWS + 1);
  const cut = (row) => row.slice(0, MOST_COLUMNS);
  return [table("Table", cut(heads), rows.map(cut)), rows.length === MOST_ROWS && faint(`The first ${MOST_ROWS} rows.`)];
}

function plain(text) {
  const cut = text.length > MOST_CHARACTERS;
  return [
    h("pre", { class: "text", tabindex: "0" }, text.slice(0, MOST_CHARACTERS)),
    cut && faint(`The first ${MOST_CHARACTERS} of ${text.length} characters.`),
  ];
}

function fromBase64(text) {
  try {
    return typeof text === "string" && Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  } catch {
    return null;
  }
}

function asText(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

function parsed(text, most) {
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length && rows.length < most; at += 1) {
    const one = text[at];
    if (quoted) {
      if (one !== '"') cell += one;
      else if (text[at + 1] === '"') { cell += one; at += 1; } else quoted = false;
    } else if (one === '"') {
      quoted = true;
    } else if (one === ",") {
      row.push(cell);
      cell = "";
    } else if (one === "\n") {
      rows.push([...row, cell]);
      row = [];
      cell = "";
    } else if (one !== "\r") {
      cell += one;
    }
  }
  if (rows.length < most && (cell || row.length)) rows.push([...row, cell]);
  return rows;
}
