// What a program prints, as it prints it. The pane is bounded: of more it shows the newest part.

import { Ansi } from "./ansi.js";
import { h, visible } from "./elements.js";

const SHOW_AGAIN_MS = 50;
const MOST_LINES = 5000;
const MOST_LINE = 20_000;
const MOST_PIECES = 500;

export class Output {
  #readers = { stdout: new Ansi(), stderr: new Ansi() };
  #waiting = [];
  #timer = null;
  #line = null;
  #length = 0;
  #restarted = false;

  constructor(label = "Output") {
    this.element = h("pre", { class: "output", role: "log", "aria-live": "polite", "aria-label": label, tabindex: "0" });
  }

  write(stream, text) {
    this.#waiting.push([stream, text]);
    this.#timer ??= setTimeout(() => this.#show(), SHOW_AGAIN_MS);
  }

  // A word of the console between those of the program.
  remark(text) {
    this.#show();
    this.#newLine().append(h("span", { class: "remark" }, text));
    this.#line = null;
  }

  clear() {
    this.#waiting = [];
    this.#line = null;
    this.element.replaceChildren();
  }

  #show() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const pane = this.element;
    const atEnd = pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 8;
    for (const [stream, text] of this.#waiting) {
      for (const piece of this.#readers[stream].read(text)) this.#add(stream, piece);
    }
    this.#waiting = [];
    if (atEnd) pane.scrollTop = pane.scrollHeight;
  }

  #add(stream, { text, style }) {
    if (text === "\r") {
      this.#restarted = true;
      return;
    }
    text.split("\n").forEach((part, index) => {
      if (index) this.#endLine();
      if (part) this.#append(part, stream === "stderr" ? `err ${style}` : style);
    });
  }

  #append(part, style) {
    const line = this.#line ?? this.#newLine();
    if (this.#restarted) {
      line.replaceChildren();
      this.#length = 0;
      this.#restarted = false;
    }
    const fits = visible(part.slice(0, Math.max(0, MOST_LINE - this.#length)));
    if (!fits) return;
    this.#length += fits.length;
    const last = line.lastElementChild;
    // A program may change its colours with every character; then they are lost, not the text.
    if (last && (last.className === style || line.childElementCount >= MOST_PIECES)) last.append(fits);
    else line.append(h("span", { class: style }, fits));
  }

  #newLine() {
    this.#line = h("div", {});
    this.#length = 0;
    this.element.append(this.#line);
    if (this.element.childElementCount > MOST_LINES) this.element.firstElementChild.remove();
    return this.#line;
  }

  #endLine() {
    if (!this.#line) this.#newLine();
    this.#line = null;
    this.#restarted = false;
  }
}
