"""Which packages may be installed for a program: as callers ask for them and as layers list them.

A requirement is a name, perhaps with extras and versions, and nothing else: an address, a path, an option or
a marker would let a request say where code comes from. Names are compared in the one form of PEP 503. Every
layer that has a list must allow, any may deny, and where no layer lists any, none are allowed. What a package
needs is installed with it, so its name is held against the lists too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from belljar.errors import BadRequest, LimitExceeded, PackageNotAllowed
from belljar.models import PatternRules
from belljar.policy.patterns import matches
from belljar.wording import quoted

__all__ = ["FIELD", "check_allowed", "name_of", "pattern", "requirements"]

FIELD = "packages"
MAX_PACKAGES = 50
MAX_CHARS = 200

_PATTERN = re.compile(r"[a-z0-9*]([a-z0-9*-]{0,98}[a-z0-9*])?")


def name_of(text: str) -> str:
    """A name in the form in which two that mean the same are the same."""
    return re.sub(r"[-_.]+", "-", text).lower()


def pattern(text: str) -> str:
    """An entry of a list: a name, in which `*` stands for any characters."""
    name = name_of(text)
    if not _PATTERN.fullmatch(name):
        raise BadRequest(f"{quoted(text)} is not the name of a package; write it like `numpy` or `types-*`")
    return name


def requirements(texts: Sequence[str]) -> tuple[str, ...]:
    """In canonical form and order, so that two requests for the same are the same.

    Raises:
        BadRequest, LimitExceeded: with the field.
    """
    if len(texts) > MAX_PACKAGES:
        raise LimitExceeded(f"{len(texts)} packages; at most {MAX_PACKAGES} can be asked for", field=FIELD)
    found: dict[str, str] = {}
    for text in texts:
        requirement = _canonical(text)
        name = _name(requirement)
        if name in found:
            raise BadRequest(f"package {name} is asked for twice", field=FIELD)
        found[name] = requirement
    return tuple(found[name] for name in sorted(found))


def check_allowed(wanted: Iterable[str], rules: Sequence[PatternRules]) -> None:
    """Of requirements or names, in canonical form.

    Raises:
        PackageNotAllowed: says which, and which layer does not allow it.
    """
    for name in map(_name, wanted):
        why = _refusal(name, rules)
        if why:
            raise PackageNotAllowed(f"package {name} is not allowed ({why})", field=FIELD)


def _canonical(text: str) -> str:
    # Imported here, because most requests have none.
    from packaging.requirements import InvalidRequirement, Requirement

    if len(text) > MAX_CHARS:
        raise LimitExceeded(f"a package of {len(text)} characters; at most {MAX_CHARS} fit", field=FIELD)
    try:
        said = Requirement(text)
    except InvalidRequirement:
        message = f"{quoted(text)} is not a package; write it like `numpy` or `requests==2.32.*`"
        raise BadRequest(message, field=FIELD) from None
    if said.url is not None or said.marker is not None:
        raise BadRequest(f"{quoted(text)}: a package is a name and versions, and nothing else", field=FIELD)
    if any(one.operator == "===" for one in said.specifier):
        raise BadRequest(f"{quoted(text)}: write `==` instead of `===`", field=FIELD)
    extras = f"[{','.join(sorted(map(name_of, said.extras)))}]" if said.extras else ""
    return f"{name_of(said.name)}{extras}{','.join(sorted(map(str, said.specifier)))}"


def _name(requirement: str) -> str:
    return re.split(r"[^a-z0-9-]", requirement, maxsplit=1)[0]


def _refusal(name: str, rules: Sequence[PatternRules]) -> str:
    for each in rules:
        denying = next((pattern for pattern in each.deny if matches(pattern, name)), None)
        if denying is not None:
            return f"{each.layer}: denied_packages {denying}"
        if each.allow is not None and not any(matches(pattern, name) for pattern in each.allow):
            return f"{each.layer}: not in allowed_packages"
    if all(each.allow is None for each in rules):
        return "system: no layer lists allowed_packages"
    return ""
