// The files that a run left: a list, and the one that is looked at.

import { artifactPath, call } from "./api.js";
import { button, h, put, table } from "./elements.js";
import { careful } from "./notice.js";
import { isSmall, preview, save } from "./preview.js";
import { size, short } from "./words.js";

export function artifactList(run, signal) {
  const place = h("div", { class: "preview", "aria-live": "polite" });
  const fetched = (file) => call("GET", artifactPath(run.exec_id, file.path), { signal });
  const look = (file) => careful(async () => {
    const bytes = new Uint8Array(await (await fetched(file)).arrayBuffer());
    put(place, h("h3", {}, file.path), preview(file.path, file.mime, bytes));
  });
  const keep = (file) => careful(async () => save(file.path, await (await fetched(file)).blob()));
  const rows = run.artifacts.map((file) => [
    h("code", {}, file.path), size(file.size), file.mime, h("code", { title: file.sha256 }, short(file.sha256)),
    h("span", { class: "actions" },
      isSmall(file.size) && button("Look", look(file), { "aria-label": `Look at ${file.path}` }),
      button("Save", keep(file), { "aria-label": `Save ${file.path}` })),
  ]);
  return [
    rows.length ? table("Artifacts", ["Path", "Size", "Type", "sha256", ""], rows) : h("p", { class: "faint" }, "None."),
    run.skipped.length > 0 && h("ul", {}, run.skipped.map((one) => h("li", {}, h("code", {}, one.path), ` was left out: ${one.reason}`))),
    place,
  ];
}
