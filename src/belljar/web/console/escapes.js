// Takes what is written for a terminal apart: text, control characters, and sequences that begin with ESC.
//
// It goes on where the last piece ended, so a sequence may be cut anywhere; and it keeps little of one, however long it is.

const MOST_PARAMETERS = 64;

export class Escapes {
  #state = "text";
  #parameters = "";
  #reader;

  // The reader has `text(text)`, `control(character)`, `escape(character)` and `sequence(final, parameters)`.
  constructor(reader) {
    this.#reader = reader;
  }

  read(text) {
    let run = "";
    const end = () => {
      if (run) this.#reader.text(run);
      run = "";
    };
    for (const one of text) {
      if (this.#state !== "text") {
        this.#follow(one);
      } else if (one >= " " && one !== "\x7f" && !(one >= "\x80" && one <= "\x9f")) {
        run += one;
      } else {
        end();
        if (one === "\x1b") this.#state = "escape";
        else this.#reader.control(one);
      }
    }
    end();
  }

  #follow(one) {
    if (this.#state === "escape") {
      this.#parameters = "";
      this.#state = one === "[" ? "sequence" : "]PX^_".includes(one) ? "string" : "()*+#%".includes(one) ? "set" : "text";
      if (this.#state === "text") this.#reader.escape(one);
    } else if (this.#state === "sequence") {
      if (one >= "@" && one <= "~") {
        this.#state = "text";
        this.#reader.sequence(one, this.#parameters);
      } else if (this.#parameters.length < MOST_PARAMETERS) {
        this.#parameters += one;
      }
    } else if (this.#state === "string") {
      if (one === "\x07") this.#state = "text";
      else if (one === "\x1b") this.#state = "string end";
    } else if (this.#state === "string end") {
      this.#state = one === "\\" ? "text" : "string";
    } else {
      this.#state = "text";
    }
  }
}
