// What happened, said once at the top of the page; heard by who cannot see it.

import { put } from "./elements.js";

const place = (id) => document.getElementById(id);

export function say(text) {
  put(place("fault"));
  put(place("notice"), text);
}

export function failed(error) {
  if (error.name === "AbortError") return;
  put(place("notice"));
  put(place("fault"), error.field ? `${error.message} (${error.field})` : error.message);
}

export function quiet() {
  put(place("notice"));
  put(place("fault"));
}
