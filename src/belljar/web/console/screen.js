// The screen of a terminal, as far as shells, editors and pagers use one: cells, a cursor, a region that scrolls, and a
// second screen. Every number that a program gives is held within the screen.

import { Escapes } from "./escapes.js";
import { Pen } from "./pen.js";

const TAB = 8;
const MOST_SCROLLED = 1000;
const SECOND_SCREEN = new Set([47, 1047, 1049]);

export class Screen {
  #escapes = new Escapes(this);
  #pen = new Pen();
  #saved = { row: 0, column: 0 };
  #first = null;
  row = 0;
  column = 0;
  cursorIsShown = true;
  scrolledOff = []; // the last lines that have left the top, for whoever keeps them

  constructor(rows, columns) {
    this.rows = rows;
    this.columns = columns;
    this.#reset();
  }

  write(text) {
    this.#escapes.read(text);
  }

  text(text) {
    for (const one of text) {
      if (this.column >= this.columns) {
        this.column = 0;
        this.#down();
      }
      this.lines[this.row][this.column] = { text: one, style: this.#pen.style };
      this.column += 1;
    }
  }

  control(one) {
    if (one === "\n" || one === "\x0b" || one === "\x0c") this.#down();
    else if (one === "\r") this.column = 0;
    else if (one === "\b") this.#move(this.row, this.column - 1);
    else if (one === "\t") this.#move(this.row, (Math.floor(this.column / TAB) + 1) * TAB);
  }

  escape(one) {
    if (one === "7") this.#save();
    else if (one === "8") this.#move(this.#saved.row, this.#saved.column);
    else if (one === "D") this.#down();
    else if (one === "E") { this.column = 0; this.#down(); }
    else if (one === "M") this.#up();
    else if (one === "c") this.#reset();
  }

  sequence(final, parameters) {
    if (parameters.startsWith("?")) {
      parameters.slice(1).split(";").map(Number).forEach((mode) => this.#mode(mode, final));
      return;
    }
    const [given, second] = parameters.split(";").map(Number);
    const count = Math.min(Math.max(given || 1, 1), this.rows + this.columns);
    const line = this.lines[this.row];
    switch (final) {
      case "m": this.#pen.change(parameters); break;
      case "A": this.#move(this.row - count, this.column); break;
      case "B": case "e": this.#move(this.row + count, this.column); break;
      case "C": case "a": this.#move(this.row, this.column + count); break;
      case "D": this.#move(this.row, this.column - count); break;
      case "E": this.#move(this.row + count, 0); break;
      case "F": this.#move(this.row - count, 0); break;
      case "G": case "`": this.#move(this.row, count - 1); break;
      case "d": this.#move(count - 1, this.column); break;
      case "H": case "f": this.#move(count - 1, (second || 1) - 1); break;
      case "J": this.#eraseScreen(given || 0); break;
      case "K": this.#eraseLine(given || 0); break;
      case "X": line.fill(BLANK, this.column, this.column + count); break;
      case "P": line.splice(this.column, count); this.#fit(line); break;
      case "@": line.splice(this.column, 0, ...blanks(count)); this.#fit(line); break;
      case "L": this.#shift(this.row, -count); break;
      case "M": this.#shift(this.row, count); break;
      case "S": this.#shift(this.top, count); break;
      case "T": this.#shift(this.top, -count); break;
      case "r": this.#region(count - 1, Math.min(second || this.rows, this.rows) - 1); break;
      case "s": this.#save(); break;
      case "u": this.#move(this.#saved.row, this.#saved.column); break;
    }
  }

  #mode(mode, final) {
    if (mode === 25) this.cursorIsShown = final === "h";
    if (!SECOND_SCREEN.has(mode)) return;
    if (final === "h" && !this.#first) {
      this.#first = { lines: this.lines, row: this.row, column: this.column };
      this.lines = this.#empty();
    } else if (final === "l" && this.#first) {
      this.lines = this.#first.lines;
      this.#move(this.#first.row, this.#first.column);
      this.#first = null;
    }
  }

  #reset() {
    this.#first = null;
    this.lines = this.#empty();
    this.#region(0, this.rows - 1);
  }

  #region(top, bottom) {
    [this.top, this.bottom] = top < bottom ? [top, bottom] : [0, this.rows - 1];
    this.#move(0, 0);
  }

  #save() {
    this.#saved = { row: this.row, column: this.column };
  }

  #move(row, column) {
    this.row = Math.min(Math.max(row, 0), this.rows - 1);
    this.column = Math.min(Math.max(column, 0), this.columns - 1);
  }

  #down() {
    if (this.row === this.bottom) this.#shift(this.top, 1);
    else this.row = Math.min(this.row + 1, this.rows - 1);
  }

  #up() {
    if (this.row === this.top) this.#shift(this.top, -1);
    else this.row = Math.max(this.row - 1, 0);
  }

  // Lines from this one to the end of the region, up by so many, or down.
  #shift(from, count) {
    if (from > this.bottom) return;
    for (let left = Math.min(Math.abs(count), this.bottom - from + 1); left > 0; left -= 1) {
      const [gone] = this.lines.splice(count > 0 ? from : this.bottom, 1);
      this.lines.splice(count > 0 ? this.bottom : from, 0, blanks(this.columns));
      if (count > 0 && from === 0 && !this.#first) this.scrolledOff.push(gone);
    }
    if (this.scrolledOff.length > 2 * MOST_SCROLLED) this.scrolledOff.splice(0, MOST_SCROLLED);
  }

  #eraseScreen(what) {
    if (what !== 0 && what !== 1) this.lines.forEach((line) => line.fill(BLANK));
    else {
      this.lines.slice(what ? 0 : this.row + 1, what ? this.row : this.rows).forEach((line) => line.fill(BLANK));
      this.#eraseLine(what);
    }
  }

  #eraseLine(what) {
    this.lines[this.row].fill(BLANK, what === 0 ? this.column : 0, what === 1 ? this.column + 1 : this.columns);
  }

  #fit(line) {
    line.splice(this.columns);
    line.push(...blanks(this.columns - line.length));
  }

  #empty() {
    return Array.from({ length: this.rows }, () => blanks(this.columns));
  }
}

const BLANK = { text: " ", style: "" };

function blanks(count) {
  return Array(count).fill(BLANK);
}
