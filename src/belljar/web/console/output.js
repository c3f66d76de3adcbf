// What a program prints, as it prints it. The pane is bounded: of more it shows the newest part.

import { Ansi } from "./ansi.js";
import { h } from "./elements.js";

const SHOW_AGAIN_MS = 50;
const MOST_LINES = 5000;
const MOST_CHARACTERS = 20_000;
const MOST_PIECES = 200;

export class Output {
  #readers = { stdout: new Ansi(), stderr: new Ansi() };
  #lines = [new Line()];
  #timer = null;

  constructor(label = "Output") {
    this.element = h("pre", { class: "output", role: "log", "aria-live": "polite", "aria-label": label, tabindex: "0" });
  }

  write(stream, text) {
    for (const { text: piece, style } of this.#readers[stream].read(text)) {
      if (piece === "\r") this.#last.restart();
      else this.#add(piece, stream === "stderr" ? `err ${style}`.trim() : style);
    }
    this.#showSoon();
  }

  // A word of the console between those of the program.
  remark(text) {
    if (!this.#last.isEmpty) this.#lines.push(new Line());
    this.#add(`${text}\n`, "remark");
    this.#showSoon();
  }

  clear() {
    this.#lines = [new Line()];
    this.element.replaceChildren();
  }

  get #last() {
    return this.#lines.at(-1);
  }

  #add(text, style) {
    text.split("\n").forEach((part, index) => {
      if (index) this.#lines.push(new Line());
      if (part) this.#last.add(part, style);
    });
    // Twice as many, so that not every line moves all others.
    if (this.#lines.length > 2 * MOST_LINES) this.#forget();
  }

  #forget() {
    for (const line of this.#lines.splice(0, this.#lines.length - MOST_LINES)) line.element?.remove();
  }

  #showSoon() {
    this.#timer ??= setTimeout(() => this.#show(), SHOW_AGAIN_MS);
  }

  #show() {
    this.#timer = null;
    const pane = this.element;
    const atEnd = pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 8;
    if (this.#lines.length > MOST_LINES) this.#forget();
    const changed = this.#lines.findLastIndex((line) => line.isShown) + 1;
    for (const line of this.#lines.slice(changed, this.#last.isEmpty ? -1 : undefined)) {
      line.show();
      if (!line.element.isConnected) pane.append(line.element);
    }
    if (atEnd) pane.scrollTop = pane.scrollHeight;
  }
}

class Line {
  #pieces = [];
  #length = 0;
  #restarted = false;
  element = null;
  isShown = false;

  get isEmpty() {
    return this.#length === 0;
  }

  restart() {
    this.#restarted = true;
  }

  add(text, style) {
    if (this.#restarted) {
      this.#pieces = [];
      this.#length = 0;
      this.#restarted = false;
    }
    const fits = text.slice(0, MOST_CHARACTERS - this.#length);
    if (!fits) return;
    this.#length += fits.length;
    this.isShown = false;
    const last = this.#pieces.at(-1);
    // A program may change its colours with every letter; then they are lost, not the text.
    if (last && (last.style === style || this.#pieces.length >= MOST_PIECES)) last.text += fits;
    else this.#pieces.push({ text: fits, style });
  }

  show() {
    this.element ??= h("div", {});
    this.element.replaceChildren(...this.#pieces.map(({ text, style }) => h("span", { class: style }, text)));
    this.isShown = true;
  }
}
