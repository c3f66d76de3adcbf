// The files that a run left: a list, and the one that is looked at.

import { artifactPath, call } from "./api.js";
import { h, list, put } from "./elements.js";
import { button, careful } from "./forms.js";
import { isSmall, preview, save } from "./preview.js";
import { size, short } from "./words.js";

export function artifactList(run, signal) {
  const place = h("div", { class: "preview" });
  const fetched = (file) => call("GET", artifactPath(run.exec_id, file.path), { signal });
  const look = (file) => careful(async () => {
    const bytes = new Uint8Array(await (await fetched(file)).arrayBuffer());
    put(place, h("h3", {}, file.path), preview(file.path, bytes, file.mime));
  });
  const keep = (file) => careful(async () => save(file.path, await (await fetched(file)).blob()));
  const rows = run.artifacts.map((file) => [
    h("code", {}, file.path), size(file.size), file.mime, h("code", { title: file.sha256 }, short(file.sha256)),
    h("span", { class: "actions" },
      isSmall(file.size) && button("Look", look(file), { "aria-label": `Look at ${file.path}` }),
      button("Save", keep(file), { "aria-label": `Save ${file.path}` })),
  ]);
  return [
    list("Artifacts", ["Path", "Size", "Type", "sha256", ""], rows),
    h("ul", {}, run.skipped.map((one) => h("li", {}, h("code", {}, one.path), ` was left out: ${one.reason}`))),
    place,
  ];
}
