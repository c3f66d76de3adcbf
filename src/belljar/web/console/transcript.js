// A run as it is told by its events: what it prints, what its cells show, how it ends.

import { h, put } from "./elements.js";
import { Output } from "./output.js";
import { shown } from "./preview.js";

export class Transcript {
  #output;
  #results = h("div", {});

  constructor(label) {
    this.#output = new Output(label);
    this.elements = [this.#output.element, this.#results];
  }

  follow({ kind, data }) {
    if (kind === "stdout" || kind === "stderr") this.#output.write(kind, data.text);
    else if (kind === "shown") this.#results.append(h("div", {}, shown(data.forms)));
    else if (kind === "queued" && data.waiting) this.remark(`${data.waiting} runs are before it`);
    else if (kind === "pending_approval") this.remark("it waits for a person's yes");
    else if (kind === "alert") this.remark(`it uses nearly all of its ${data.resource}`);
    else if (kind === "ended") this.remark(data.verdict === "exited" ? `exited ${data.exit_code}` : data.verdict);
  }

  remark(text) {
    this.#output.remark(text);
  }

  clear() {
    this.#output.clear();
    put(this.#results);
  }
}
