// A program as a person must see it to judge it: every line with its number, every finding beside its line, and no
// character that hides or moves others.

import { h, number } from "./elements.js";
import { badge } from "./words.js";

// Of no width, or a command to a terminal; the ones that turn text around are made visible everywhere.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200d\u2028\u2029\u2060-\u2064\ufeff]/gu;

export function listing(code, findings = []) {
  const byLine = Map.groupBy(findings, (finding) => finding.line);
  const lines = code.replace(/\r\n/g, "\n").replace(/\n$/, "").split("\n").map((text, index) => {
    const found = byLine.get(index + 1) ?? [];
    return h("li", { class: found.length ? "found" : null },
      h("code", {}, shown(text)),
      found.map((finding) => h("span", { class: "finding" }, badge(finding.tier), " ", finding.reason)));
  });
  const elsewhere = findings.filter((finding) => !(finding.line >= 1 && finding.line <= lines.length));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Program" },
    h("ol", { class: "listing" }, lines),
    elsewhere.length > 0 && h("ul", {}, elsewhere.map(({ tier, reason }) => h("li", {}, badge(tier), " ", reason))));
}

function shown(text) {
  const plain = text.split(HIDDEN);
  const hidden = text.match(HIDDEN) ?? [];
  return plain.flatMap((part, index) => [part, hidden[index] && h("mark", {}, number(hidden[index]))]);
}
