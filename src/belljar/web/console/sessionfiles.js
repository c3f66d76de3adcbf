// The files of a session: looked at, saved, sent and removed while programs run.

import { call, get, query, sessionPath } from "./api.js";
import { faint, h, list, put } from "./elements.js";
import { button, careful, field, submit } from "./forms.js";
import { failed } from "./notice.js";
import { isSmall, preview, save } from "./preview.js";
import { size } from "./words.js";

const DEPTH = 8;

export async function sessionFiles(id, signal) {
  const found = h("div", {});
  const seen = h("div", { class: "preview" });
  const upload = h("input", { type: "file", required: true });
  const content = (path) => query(sessionPath(id, "files", "content"), { path });

  async function refresh() {
    const { files, complete } = await get(query(sessionPath(id, "files"), { depth: DEPTH }), signal);
    put(found, list("Files", ["Path", "Kind", "Size", ""], files.map(rowOf)), !complete && faint("There are more."));
  }

  const read = async (path) => (await call("GET", content(path), { signal })).blob();
  const look = ({ path }) => careful(async () => {
    const bytes = new Uint8Array(await (await read(path)).arrayBuffer());
    put(seen, h("h3", {}, path), preview(path, bytes));
  });
  const keep = ({ path }) => careful(async () => save(path, await read(path)));
  const remove = ({ path }) => careful(async () => {
    await call("DELETE", query(sessionPath(id, "files"), { path }), { signal });
    await refresh();
  });
  const send = careful(async () => {
    const [file] = upload.files;
    await call("PUT", content(file.name), { body: file, signal });
    await refresh();
  });

  function rowOf(file) {
    const named = (verb) => ({ "aria-label": `${verb} ${file.path}` });
    const isFile = file.kind === "regular";
    return [
      h("code", {}, file.path), file.kind, size(file.size),
      h("span", { class: "actions" },
        isFile && isSmall(file.size) && button("Look", look(file), named("Look at")),
        isFile && button("Save", keep(file), named("Save")),
        button("Remove", remove(file), { class: "danger", ...named("Remove") })),
    ];
  }

  await refresh().catch(failed);
  return [
    found, seen,
    h("form", { class: "filters", onsubmit: send },
      field("A file for it", upload), submit("Send"), button("Look again", careful(refresh))),
  ];
}
