// Reads a program's output as lines: pieces of text, each with its classes, and "\r" by itself for "this line starts
// again". What moves a cursor or asks something of a terminal is dropped.

import { Escapes } from "./escapes.js";
import { Pen } from "./pen.js";

export class Ansi {
  #escapes = new Escapes(this);
  #pen = new Pen();
  #pieces = [];

  read(text) {
    this.#pieces = [];
    this.#escapes.read(text);
    return this.#pieces;
  }

  text(text) {
    const last = this.#pieces.at(-1);
    if (last && last.text !== "\r" && last.style === this.#pen.style) last.text += text;
    else this.#pieces.push({ text, style: this.#pen.style });
  }

  control(one) {
    if (one === "\r") this.#pieces.push({ text: one, style: "" });
    else if (one === "\n" || one === "\t") this.text(one);
  }

  escape() {}

  sequence(final, parameters) {
    if (final === "m") this.#pen.change(parameters);
  }
}
