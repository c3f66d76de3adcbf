// A form from the JSON schema of an object: one field for each property, and what was entered as a value of it.

import { h } from "./elements.js";
import { choice, field } from "./forms.js";

export function formFor(schema) {
  const required = new Set(schema.required ?? []);
  const properties = Object.entries(schema.properties ?? {});
  const inputs = properties.map(([name, one]) => ({ name, one, input: inputFor(one, required.has(name)) }));
  return {
    fields: inputs.map(({ name, one, input }) => field(required.has(name) ? `${name} *` : name, input, one.description)),
    value: () => Object.fromEntries(inputs.filter(({ input }) => input.value).map((of) => [of.name, entered(of)])),
  };
}

function inputFor(schema, required) {
  const options = schema.type === "boolean" ? ["true", "false"] : schema.enum?.map(String);
  if (options) return choice(required ? options : ["", ...options]);
  const { minimum: min, maximum: max } = schema;
  if (schema.type === "integer") return h("input", { type: "number", step: 1, min, max, required });
  if (schema.type === "number") return h("input", { type: "number", step: "any", min, max, required });
  return h("textarea", { rows: 2, class: "code", spellcheck: "false", required });
}

function entered({ name, one: schema, input }) {
  const text = input.value;
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
