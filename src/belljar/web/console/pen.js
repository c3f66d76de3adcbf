// The colours that a program has chosen for what it writes next, as classes.

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "struck" };
const OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["struck"] };

export class Pen {
  #flags = new Set();
  #front = "";
  #back = "";
  style = "";

  // The parameters of `ESC [ … m`.
  change(parameters) {
    const codes = parameters.split(/[;:]/).map(Number);
    while (codes.length) this.#apply(codes.shift(), codes);
    this.style = [...this.#flags, this.#front, this.#back && `on-${this.#back}`].filter(Boolean).join(" ");
  }

  #apply(code, more) {
    if (code === 0) {
      this.#flags.clear();
      this.#front = this.#back = "";
    } else if (FLAGS[code]) this.#flags.add(FLAGS[code]);
    else if (OFF[code]) OFF[code].forEach((flag) => this.#flags.delete(flag));
    else if (code === 38) this.#front = other(more) ?? this.#front;
    else if (code === 48) this.#back = other(more) ?? this.#back;
    else if (code === 39) this.#front = "";
    else if (code === 49) this.#back = "";
    else if (code >= 30 && code <= 37) this.#front = NAMES[code - 30];
    else if (code >= 40 && code <= 47) this.#back = NAMES[code - 40];
    else if (code >= 90 && code <= 97) this.#front = `bright-${NAMES[code - 90]}`;
    else if (code >= 100 && code <= 107) this.#back = `bright-${NAMES[code - 100]}`;
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
