// What was granted, field by field, with the layer of policy that set it and the most that it could have been.

import { h, table } from "./elements.js";
import { value } from "./words.js";

// As `/approvals` and `/policy/explain` give it.
export function grantTable(fields) {
  return table("Granted", ["Field", "Value", "Set by", "At most"], fields.map((one) => [
    h("code", {}, one.field), value(one.value), layer(one.layer),
    one.ceiling_layer ? [value(one.ceiling), " ", layer(one.ceiling_layer)] : "–",
  ]));
}

// As the record of a run keeps it.
export function snapshotTable(snapshot) {
  const rows = Object.entries(snapshot).map(([name, one]) => [h("code", {}, name), value(one.value), layer(one.layer)]);
  return table("Granted", ["Field", "Value", "Set by"], rows);
}

function layer(name) {
  return h("span", { class: "layer" }, name);
}
