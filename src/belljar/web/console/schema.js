// A form from the JSON schema of an object: one field for each property, and what was entered as a value of it.

import { field, h } from "./elements.js";

export function formFor(schema) {
  const required = new Set(schema.required ?? []);
  const inputs = Object.entries(schema.properties ?? {}).map(([name, one]) => [name, one, inputFor(one, required.has(name))]);
  return {
    fields: inputs.map(([name, one, input]) => field(required.has(name) ? `${name} *` : name, input, one.description)),
    value: () => Object.fromEntries(inputs.map(([name, one, input]) => [name, entered(name, one, input)]).filter(([, value]) => value !== undefined)),
  };
}

function inputFor(schema, required) {
  if (schema.enum) return h("select", { required }, !required && h("option", { value: "" }, "–"), schema.enum.map((one) => h("option", { value: String(one) }, String(one))));
  if (schema.type === "boolean") return h("select", {}, ["", "true", "false"].map((one) => h("option", { value: one }, one || "–")));
  if (schema.type === "integer" || schema.type === "number") {
    return h("input", { type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum?.toString(), max: schema.maximum?.toString(), required });
  }
  return h("textarea", { rows: 2, class: "code", spellcheck: "false", required });
}

function entered(name, schema, input) {
  const text = input.value;
  if (text === "") return undefined;
  if (schema.enum) return schema.enum.find((one) => String(one) === text);
  if (schema.type === "boolean") return text === "true";
  if (schema.type === "integer" || schema.type === "number") return Number(text);
  if (schema.type === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name} must be JSON`);
  }
}
