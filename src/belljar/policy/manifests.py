"""The part of a skill's manifest.json that is policy: `limits`, `permissions` and the image, as a layer.

The whole manifest is checked for unknown keys and types, so that a misspelt `permissions` cannot pass
for one that says nothing.
"""

from __future__ import annotations

import os
import re
from typing import Any

from belljar.policy.layers import Layer
from belljar.policy.limits import BY_WIRE_NAME
from belljar.policy.packages import requirements
from belljar.policy.statements import STATEMENTS, compose
from belljar.policy.trees import Node, from_json, read_text
from belljar.wording import nearest, printable, quoted

__all__ = ["load", "loads"]

_TOP = ("schema_version", "id", "name", "description", "interface", "runtime", "permissions", "limits")
_ID = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)+")
_TREES = ("inputs", "work", "artifacts")


def load(path: str | os.PathLike[str]) -> Layer:
    """The layer `skill:<id>`. Raises BadPolicy with file, line and key."""
    return loads(read_text(path), name=printable(os.fspath(path)))


def loads(text: str, *, name: str = "manifest.json") -> Layer:
    root = from_json(text, name)
    top = root.entries(_TOP)
    if "id" not in top:
        raise root.fault("needs an `id`")
    skill = top["id"].text()
    if len(skill) > 128 or not _ID.fullmatch(skill):
        raise top["id"].fault(f"{quoted(skill)} is not a skill id; write it like `shell.run`")
    for key in ("schema_version", "name", "description"):
        if key in top:
            top[key].text()
    if "interface" in top:
        top["interface"].entries(("inputs", "outputs"))
    said: dict[str, Any] = {}
    if "runtime" in top:
        said |= _runtime(top["runtime"])
    if "permissions" in top:
        said |= _permissions(top["permissions"])
    limits = _limits(top["limits"]) if "limits" in top else {}
    layer = f"skill:{skill}"
    return Layer(layer, compose(layer, limits, said))


def _runtime(node: Node) -> dict[str, Any]:
    entries = node.entries(("kind", "image", "entrypoint", "packages"))
    if "kind" in entries and entries["kind"].text() != "docker":
        raise entries["kind"].fault("the only kind is `docker`")
    if "entrypoint" in entries:
        for word in entries["entrypoint"].items():
            word.text()
    if "packages" in entries:
        with entries["packages"].located():
            requirements([package.text() for package in entries["packages"].items()])
    if "image" not in entries:
        return {}
    with entries["image"].located():
        return {"images": (STATEMENTS["images"].read(entries["image"].text()),)}


def _permissions(node: Node) -> dict[str, Any]:
    entries = node.entries(("fs", "net"))
    said: dict[str, Any] = {}
    if "net" in entries:
        net = entries["net"].entries(("mode",))
        if "mode" in net and net["mode"].text() != "none":
            raise net["mode"].fault("the only mode is `none`")
        said["network_access"] = False
    if "fs" in entries:
        listed = entries["fs"].entries(("read", "write"))
        paths = [path for node in listed.values() for path in node.items()]
        said["allowed_paths"] = tuple(dict.fromkeys(_path(path) for path in paths))
    return said


def _path(node: Node) -> str:
    text = node.text()
    if text.partition("/")[0] not in _TREES:
        trees = ", ".join(f"`{tree}/**`" for tree in _TREES)
        raise node.fault(f"{quoted(text)} is not under {trees}")
    with node.located():
        return str(STATEMENTS["allowed_paths"].read(f"/workspace/{text}"))


def _limits(node: Node) -> dict[str, float]:
    limits: dict[str, float] = {}
    for name, value in node.entries().items():
        if name not in BY_WIRE_NAME:
            raise value.unknown(name, nearest(name, BY_WIRE_NAME))
        limit, per = BY_WIRE_NAME[name]
        if limit.name in limits:
            raise value.fault(f"says the same as another key for `{limit.name}`; give one of them")
        with value.located():
            limits[limit.name] = limit.from_number(value.content, per)
    return limits
