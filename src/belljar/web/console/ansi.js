// Reads what a program wrote for a terminal: colours become classes, all other commands to the terminal are dropped.
//
// It goes on where the last piece ended, so a sequence may be cut anywhere. What it gives are pieces of text, each with
// its classes, and "\r" by itself for "this line starts again".

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "struck" };
const OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["struck"] };
const MOST_PARAMETERS = 64;

export class Ansi {
  #state = "text";
  #parameters = "";
  #flags = new Set();
  #front = "";
  #back = "";

  read(text) {
    const pieces = [];
    let run = "";
    const end = () => {
      if (run) pieces.push({ text: run, style: this.#style() });
      run = "";
    };
    for (const one of text) {
      if (this.#state !== "text") {
        const done = this.#follow(one);
        if (done === "m") { end(); this.#paint(); }
      } else if (one === "\x1b") {
        this.#state = "escape";
      } else if (one === "\r") {
        end();
        pieces.push({ text: "\r", style: "" });
      } else if (one >= " " || one === "\n" || one === "\t") {
        if (one !== "\x7f" && !(one >= "\x80" && one <= "\x9f")) run += one;
      }
    }
    end();
    return pieces;
  }

  // One character of a sequence; the sequence's last one when it is complete.
  #follow(one) {
    if (this.#state === "escape") {
      this.#parameters = "";
      this.#state = one === "[" ? "csi" : "]PX^_".includes(one) ? "string" : "()*+#%".includes(one) ? "set" : "text";
    } else if (this.#state === "csi") {
      if (one >= "@" && one <= "~") {
        this.#state = "text";
        return one;
      }
      if (this.#parameters.length < MOST_PARAMETERS) this.#parameters += one;
    } else if (this.#state === "string") {
      if (one === "\x07") this.#state = "text";
      else if (one === "\x1b") this.#state = "string end";
    } else if (this.#state === "string end") {
      this.#state = one === "\\" ? "text" : "string";
    } else {
      this.#state = "text";
    }
    return "";
  }

  #paint() {
    const codes = this.#parameters.split(/[;:]/).map(Number);
    while (codes.length) {
      const code = codes.shift();
      if (code === 0) { this.#flags.clear(); this.#front = this.#back = ""; }
      else if (FLAGS[code]) this.#flags.add(FLAGS[code]);
      else if (OFF[code]) OFF[code].forEach((flag) => this.#flags.delete(flag));
      else if (code === 38) this.#front = other(codes) ?? this.#front;
      else if (code === 48) this.#back = other(codes) ?? this.#back;
      else if (code === 39) this.#front = "";
      else if (code === 49) this.#back = "";
      else if (code >= 30 && code <= 37) this.#front = NAMES[code - 30];
      else if (code >= 40 && code <= 47) this.#back = NAMES[code - 40];
      else if (code >= 90 && code <= 97) this.#front = `bright-${NAMES[code - 90]}`;
      else if (code >= 100 && code <= 107) this.#back = `bright-${NAMES[code - 100]}`;
    }
  }

  #style() {
    return [...this.#flags, this.#front, this.#back && `on-${this.#back}`].filter(Boolean).join(" ");
  }
}

// One of 256 colours, or of all: the nearest of sixteen.
function other(codes) {
  const kind = codes.shift();
  if (kind === 2) return nearest(codes.splice(0, 3));
  const index = kind === 5 ? codes.shift() : NaN;
  if (!(index < 256)) return null;
  if (index < 8) return NAMES[index];
  if (index < 16) return `bright-${NAMES[index - 8]}`;
  if (index >= 232) return nearest(Array(3).fill((index - 232) * 10 + 8));
  const cube = index - 16;
  return nearest([Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((step) => step * 51));
}

function nearest([red = 0, green = 0, blue = 0]) {
  const most = Math.max(red, green, blue);
  const bits = [red, green, blue].map((part, bit) => (part > 48 && part >= most * 0.6 ? 1 << bit : 0));
  const name = NAMES[bits[0] | bits[1] | bits[2]];
  return most > 200 ? `bright-${name}` : name;
}
