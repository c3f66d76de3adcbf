// A run's receipt, and what can be checked of it: its hash here, its signature and place in the chain by the service.

import { execPath, get } from "./api.js";
import { faint, facts, h, put } from "./elements.js";
import { button, careful } from "./forms.js";
import { badge } from "./words.js";

const CLAIMS = [
  "exec_id", "request_digest", "grant_digest", "code_hash", "verdict", "exit_code", "stdout_sha256", "stderr_sha256",
];
const MOST_FAULTS = 100;
const NEEDS_HTTPS = "It says what the record says. Its hash can be checked when the page comes from localhost or by https.";

export async function receiptView(run, signal) {
  if (!run.receipt) return faint("There is one when the run is over.");
  const receipt = await get(execPath(run.exec_id, "receipt"), signal);
  const bytes = Uint8Array.from(atob(receipt.body), (one) => one.charCodeAt(0));
  const body = JSON.parse(new TextDecoder().decode(bytes));
  return [
    facts({
      Number: String(receipt.number),
      Hash: h("code", {}, receipt.hash),
      "The one before": h("code", {}, body.previous),
      Signature: h("code", {}, receipt.signature),
    }),
    h("p", {}, await ownCheck(receipt, body, bytes, run)),
    chainCheck(signal),
  ];
}

// Of all receipts, by the service.
export function chainCheck(signal) {
  const answer = h("div", { role: "status" });
  const check = careful(async () => put(answer, answerOf(await get("/audit/verify", signal))));
  return [button("Check the whole chain", check), answer];
}

function answerOf({ ok, receipts, faults }) {
  if (ok) return h("p", {}, badge("ok"), ` Every receipt is signed, follows the one before it, and is what its row says. There are ${receipts}.`);
  const told = faults.slice(0, MOST_FAULTS).map(({ kind, number, exec_id: run, what }) => [kind, number, run, what]);
  return [
    h("p", {}, badge("faults"), ` ${faults.length} found in ${receipts} receipts.`),
    h("ul", {}, told.map((words) => h("li", {}, words.filter((one) => one !== null).join(" ")))),
  ];
}

async function ownCheck(receipt, body, bytes, run) {
  const differs = CLAIMS.filter((name) => body[name] !== run[name]);
  if (differs.length) return [badge("differs"), ` The receipt says something else of ${differs.join(", ")}.`];
  if (!crypto.subtle) return NEEDS_HTTPS;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hash = Array.from(digest, (one) => one.toString(16).padStart(2, "0")).join("");
  if (hash !== receipt.hash || hash !== run.receipt) return [badge("differs"), " The hash is not that of the body."];
  return [badge("ok"), " It says what the record says, and its hash is right."];
}
