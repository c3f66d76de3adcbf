"""Credentials that are put into requests on their way out, so that no program ever holds them.

    secrets:
      github:
        host: api.github.com
        header: Authorization       # or `query: key`
        form: Bearer {}             # {} alone when left out
        file: github.token          # beside this file; or `value: …`
        tls: true                   # open the TLS of this host to put it in
        port: 443                   # else 80, or with `tls` 443
        projects: [shop]            # only for runs of these projects; of any when left out
        roles: [researcher]         # and only of these roles

Whoever may reach the host and is of its projects and roles may use the secret. A host that repeats what it is
told gives it away.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote_plus

from belljar import strictyaml
from belljar.egress import names, rules
from belljar.errors import BadConfig
from belljar.models import Network, Owner
from belljar.wording import nearest, printable, quoted

__all__ = ["Secret", "load", "usable"]

_BINDING = ("projects", "roles")
_KEYS = ("host", "port", "tls", "header", "query", "form", "value", "file", *_BINDING)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TOKEN = re.compile(r"[A-Za-z0-9-]{1,64}")
_VISIBLE = re.compile(r"[ -~]{1,8192}")
_OURS = frozenset(("host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer"))
"""Header fields that frame a request; a credential is never one of them."""
_MAX_FILE = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    name: str
    host: str
    port: int
    value: str = field(repr=False)
    header: str = ""
    """Exactly one of `header` and `query` is given: where the value goes."""
    query: str = ""
    form: str = "{}"
    tls: bool = False
    projects: frozenset[str] | None = None
    """Whose runs it is for; None: of any."""
    roles: frozenset[str] | None = None

    def is_for(self, owner: Owner | None) -> bool:
        if owner is None:
            return self.projects is None and self.roles is None
        return (self.projects is None or owner.project in self.projects) and (
            self.roles is None or owner.role in self.roles
        )

    def may_meet(self, other: Secret) -> bool:
        """Whether both would go into one request of some run."""
        return (self.host, self.port) == (other.host, other.port) and not (
            _are_apart(self.projects, other.projects) or _are_apart(self.roles, other.roles)
        )

    def into(self, path: str) -> tuple[str, tuple[tuple[bytes, bytes], ...]]:
        """The path and the header fields of a request that carries it; what the program put there is gone."""
        value = self.form.replace("{}", self.value)
        if self.header:
            return path, ((self.header.lower().encode("ascii"), value.encode("ascii")),)
        place, _, query = path.partition("?")
        kept = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]) != self.query]
        parts = [part for part in kept if part] + [f"{self.query}={quote(value, safe='')}"]
        return f"{place}?{'&'.join(parts)}", ()


def load(path: Path) -> tuple[Secret, ...]:
    """BadConfig with file and line, and never with a value, where it makes no sense or others may read it."""
    _check_private(path)
    try:
        top = strictyaml.read_file(path).value
    except BadConfig as error:  # what it says of the line may hold a value
        at = re.match(r".*?:\d+(?=:)", error.message)
        raise BadConfig(f"{at[0] if at else printable(path)}: this is not plain YAML, or a number") from None
    listed = top.get("secrets") if isinstance(top, dict) and len(top) == 1 else None
    if listed is None or not isinstance(listed.value, dict):
        raise BadConfig(f"{printable(path)}: must hold `secrets:` and nothing else, each by its name")
    found: list[Secret] = []
    for name, node in listed.value.items():
        where = f"{printable(path)}:{node.line}: secret {quoted(name)}"
        secret = _secret(name, node, where, path.parent)
        for other in filter(secret.may_meet, found):
            raise BadConfig(
                f"{where} is for the same host and port as {quoted(other.name)}, and a run might use both; "
                "give them different `projects` or `roles`"
            )
        found.append(secret)
    return tuple(found)


def usable(secrets: Iterable[Secret], network: Network, owner: Owner) -> tuple[str, ...]:
    """Names of those that a run of this owner may use, where it may reach their hosts."""
    return tuple(
        one.name
        for one in secrets
        if one.is_for(owner) and rules.may_reach(network, one.host, one.port).allowed
    )


def _secret(name: str, node: strictyaml.Node, where: str, folder: Path) -> Secret:
    if not isinstance(node.value, dict) or not _NAME.fullmatch(name):
        raise BadConfig(f"{where} must be a plain name with a block of keys")
    for key in node.value:
        if key not in _KEYS:
            raise BadConfig(f"{where} has an unknown key {quoted(key)}{nearest(key, _KEYS)}")
    projects, roles = (_names(key, node.value.get(key), where) for key in _BINDING)
    given = {key: one.value for key, one in node.value.items() if key not in _BINDING}
    tls = given.pop("tls", False)
    port = given.pop("port", 443 if tls else 80)
    words = {key: value for key, value in given.items() if isinstance(value, str)}
    if not isinstance(tls, bool) or type(port) is not int or not 0 < port < 65536:
        raise BadConfig(f"{where}: `tls` is true or false, and `port` a number from 1 to 65535")
    if len(words) != len(given):
        raise BadConfig(f"{where}: write the values of its keys in quotation marks")
    if ("header" in words) == ("query" in words) or ("value" in words) == ("file" in words):
        raise BadConfig(f"{where} needs either `header` or `query`, and either `value` or `file`")
    try:
        host = names.canonical(words.get("host", ""))
    except names.NotAName as reason:
        raise BadConfig(f"{where}: of its `host`, {reason}") from None
    place = words.get("header") or words.get("query") or ""
    if not _TOKEN.fullmatch(place) or ("header" in words and place.lower() in _OURS):
        raise BadConfig(f"{where}: `header` or `query` is not a name that a credential can go by")
    form = words.get("form", "{}")
    if form.count("{}") != 1 or not _VISIBLE.fullmatch(form):
        raise BadConfig(f"{where}: `form` must be visible ASCII with one {{}} where the value goes")
    value = words.get("value") or _from_file(folder / words.get("file", ""), where)
    if not _VISIBLE.fullmatch(value):
        raise BadConfig(f"{where}: its value must be visible ASCII, on one line")
    return Secret(
        name=name,
        host=host,
        port=port,
        value=value,
        header=words.get("header", ""),
        query=words.get("query", ""),
        form=form,
        tls=tls,
        projects=projects,
        roles=roles,
    )


def _names(key: str, node: strictyaml.Node | None, where: str) -> frozenset[str] | None:
    """A list without a name would be for nobody, which nobody means."""
    if node is None:
        return None
    items = [item.value for item in node.value] if isinstance(node.value, tuple) else []
    names = frozenset(item for item in items if isinstance(item, str) and item)
    if not items or len(names) != len(items):
        raise BadConfig(f"{where}: `{key}` is a list of names, each once")
    return names


def _are_apart(one: frozenset[str] | None, other: frozenset[str] | None) -> bool:
    return one is not None and other is not None and one.isdisjoint(other)


def _from_file(path: Path, where: str) -> str:
    _check_private(path)
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE).decode("ascii").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{where}: its file cannot be read as one line of ASCII") from error


def _check_private(path: Path) -> None:
    try:
        found = os.stat(path)
    except OSError as error:
        raise BadConfig(f"{printable(path)}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise BadConfig(f"{printable(path)}: is not a regular file")
    if found.st_mode & 0o077:
        raise BadConfig(f"{printable(path)}: others may read it; `chmod 600` it first")
