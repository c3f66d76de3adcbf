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

// Does something that may fail, with its button out of reach meanwhile.
export function careful(work) {
  return async (event) => {
    event.preventDefault();
    const pressed = event.submitter ?? event.currentTarget;
    quiet();
    pressed.disabled = true;
    try {
      await work(event);
    } catch (error) {
      failed(error);
    } finally {
      pressed.disabled = false;
      // What cannot be pressed has no focus either.
      if (document.activeElement === document.body) (pressed.isConnected ? pressed : place("content")).focus();
    }
  };
}
