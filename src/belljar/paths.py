"""Which relative paths may cross a border: the lexical rules, judged on the text alone.

A path that passes is used exactly as it was given. Nothing here or after it trims, decodes or normalises, so
`%2e%2e` is an odd but harmless name. What some other system might fold into a dot or a separator is refused
anyway. Opening what passed is the business of `guest/tree.py`.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import TYPE_CHECKING

from belljar.errors import PathNotAllowed

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "MAX_COMPONENTS",
    "MAX_COMPONENT_BYTES",
    "MAX_PATH_BYTES",
    "PathFault",
    "is_within",
    "validate",
    "validate_prefixed",
]

MAX_PATH_BYTES = 1024
"""In UTF-8. Leaves room for the directory it is joined to within Linux's PATH_MAX of 4096."""
MAX_COMPONENT_BYTES = 255
"""NAME_MAX of every Linux file system we meet."""
MAX_COMPONENTS = 32


class PathFault(StrEnum):
    """Why a path was refused."""

    EMPTY = "empty"
    SURROGATE = "surrogate"  # half a character: no UTF-8 form
    TOO_LONG = "too_long"  # the path, or one of its components
    NUL = "nul"
    CONTROL = "control"  # can forge lines or reorder text where a path is shown
    BACKSLASH = "backslash"  # a separator on Windows
    ABSOLUTE = "absolute"
    TOO_DEEP = "too_deep"
    EMPTY_COMPONENT = "empty_component"  # `a//b`, `a/`
    DOT = "dot"  # a `.` component
    PARENT = "parent"  # a `..` component
    DRIVE = "drive"  # `C:`, also inside: joining `C:x` on Windows leaves the root
    LOOKALIKE = "lookalike"  # Unicode or Windows may fold it into `.`, `..` or a separator
    SENSITIVE = "sensitive"  # a place for credentials
    OUTSIDE_PREFIX = "outside_prefix"  # a good path, but not under an allowed prefix


_WHY = {
    PathFault.EMPTY: "it is empty; give a relative path such as 'data/input.txt'",
    PathFault.SURROGATE: "it cannot be written as UTF-8; use whole Unicode characters",
    PathFault.TOO_LONG: (
        f"it is longer than {MAX_PATH_BYTES} bytes, or a name in it than {MAX_COMPONENT_BYTES}; shorten it"
    ),
    PathFault.NUL: "it contains a NUL character; remove it",
    PathFault.CONTROL: "it contains a control or text-direction character; remove it",
    PathFault.BACKSLASH: "it contains a backslash; separate directories with '/'",
    PathFault.ABSOLUTE: "it is absolute; give it relative to the workspace",
    PathFault.TOO_DEEP: f"it has more than {MAX_COMPONENTS} components; use fewer directories",
    PathFault.EMPTY_COMPONENT: "it has an empty component; write single slashes and none at the end",
    PathFault.DOT: "it has a '.' component; leave it out",
    PathFault.PARENT: "it has a '..' component; give the path without going up",
    PathFault.DRIVE: "it has a drive prefix; give it relative to the workspace",
    PathFault.LOOKALIKE: "a name in it can be mistaken for '.', '..' or a separator; use another name",
    PathFault.SENSITIVE: "it names a place where credentials are kept; use another name",
    PathFault.OUTSIDE_PREFIX: "only what is under these prefixes is: ",
}

# C0, DEL, C1; line and paragraph separators; embeddings, overrides and isolates of text direction.
_CONTROL = re.compile("[\x01-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_DRIVE = re.compile("[A-Za-z]:")

# Slashes that NFKC leaves alone, but that Windows code pages or the eye take for `/` and `\`.
_SLASHES = str.maketrans({"\u2044": "/", "\u2215": "/", "\u29f8": "/", "\u2216": "\\", "\u29f5": "\\"})

# Names that exist only to hold credentials. `.env`, `.npmrc` or `.git` are ordinary parts of a project:
# whether they may pass is for the policy's path patterns to say.
_SENSITIVE = frozenset(
    {
        ".aws",
        ".azure",
        ".docker",
        ".gcloud",
        ".git-credentials",
        ".gnupg",
        ".kube",
        ".netrc",
        "_netrc",
        ".oci",
        ".password-store",
        ".pgpass",
        ".pypirc",
        ".ssh",
        ".terraform.d",
        ".vault-token",
    }
)

_SHOWN = 100
"""Characters of a refused path that a message repeats."""


def validate(path: str, *, field: str | None = None) -> str:
    """Return `path` itself, or raise PathNotAllowed with a `PathFault` as its reason."""
    fault = _fault(path)
    if fault is not None:
        raise _refused(path, fault, field)
    return path


def validate_prefixed(path: str, prefixes: Iterable[str], *, field: str | None = None) -> str:
    """As `validate`; besides, the path must be within one of `prefixes`. No prefixes: nothing is allowed."""
    allowed = tuple(prefixes)
    if is_within(path, allowed):
        return path
    validate(path, field=field)
    raise _refused(path, PathFault.OUTSIDE_PREFIX, field, _shortened(", ".join(allowed) or "nothing"))


def is_within(path: str, prefixes: Iterable[str]) -> bool:
    """Whether a valid path lies under one of `prefixes`, compared component by component.

    `docs/` allows what is below `docs`; `docs` allows that and `docs` itself. An invalid path is within
    nothing, and an empty, absolute or climbing prefix holds nothing.
    """
    if _fault(path) is not None:
        return False
    return any(path.startswith(_as_directory(prefix)) or path == prefix for prefix in prefixes)


def _as_directory(prefix: str) -> str:
    return prefix if prefix.endswith("/") else prefix + "/"


def _fault(path: str) -> PathFault | None:
    if not path:
        return PathFault.EMPTY
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return PathFault.SURROGATE
    if size > MAX_PATH_BYTES:
        return PathFault.TOO_LONG
    if "\0" in path:
        return PathFault.NUL
    if _CONTROL.search(path):
        return PathFault.CONTROL
    if "\\" in path:
        return PathFault.BACKSLASH
    if path.startswith("/"):
        return PathFault.ABSOLUTE
    names = path.split("/")
    if len(names) > MAX_COMPONENTS:
        return PathFault.TOO_DEEP
    return next((fault for name in names if (fault := _name_fault(name))), None)


def _name_fault(name: str) -> PathFault | None:
    if not name:
        return PathFault.EMPTY_COMPONENT
    if name == ".":
        return PathFault.DOT
    if name == "..":
        return PathFault.PARENT
    if len(name.encode()) > MAX_COMPONENT_BYTES:
        return PathFault.TOO_LONG
    if _DRIVE.match(name):
        return PathFault.DRIVE
    folded = unicodedata.normalize("NFKC", name.translate(_SLASHES))
    bare = folded.rstrip(" .")  # Windows drops these from the end of a name
    if not bare or "/" in folded or "\\" in folded:
        return PathFault.LOOKALIKE
    if bare.casefold() in _SENSITIVE:
        return PathFault.SENSITIVE
    return None


def _refused(path: str, fault: PathFault, field: str | None, detail: str = "") -> PathNotAllowed:
    message = f"path {_shortened(path)} is not allowed: {_WHY[fault]}{detail}"
    return PathNotAllowed(message, reason=fault, field=field)


def _shortened(text: str) -> str:
    shown = ascii(text[:_SHOWN])
    return shown if len(shown) <= _SHOWN and len(text) <= _SHOWN else shown[:_SHOWN] + "..."
