"""Skills: bundles of code with a manifest. Found, checked, pinned by digest, and turned into runs.

    <folder>/<id>/manifest.json   what it is, what goes in and comes out, what it may use
    <folder>/<id>/…               its own files, staged in `work`, where it starts
    <folder>/pins.json            if there: id to digest, and nothing else may be used

A program gets its inputs as JSON on standard input and its files in `/workspace/inputs`. It leaves its
outputs in `/workspace/artifacts/output.json`; one that leaves none answers with its exit_code, stdout and
stderr.

What an entrypoint runs is shown to policy as it is: a script of the skill, or of the caller (`{code}`), is
read for its risk and its commands like any other program, so that no skill is a way around either.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from belljar import paths
from belljar.errors import BadPolicy, BadRequest, Conflict, LimitExceeded, NotFound, PathNotAllowed
from belljar.execution.submissions import Submission, digests, sha256
from belljar.flows.schemas import Schema, read_schema
from belljar.guest import tree
from belljar.models import InputFile, Language, PatternRules, RunRequest, canonical_json
from belljar.policy import manifests
from belljar.policy.layers import Layer
from belljar.policy.patterns import allows
from belljar.policy.trees import Node, from_json, read_text
from belljar.wording import nearest, printable, quoted

__all__ = ["Answer", "Skill", "Skills", "load_skill", "load_skills", "pin", "shipped"]

MANIFEST = "manifest.json"
PINS = "pins.json"
OUTPUT = "artifacts/output.json"
MAX_FILES = 100
MAX_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 1 << 20
MAX_PATTERNS = 20
MAX_STARS = 8
VERSIONS = ("1", "1.0")

_INTERPRETERS = {
    "python": Language.PYTHON,
    "python3": Language.PYTHON,
    "bash": Language.BASH,
    "node": Language.JAVASCRIPT,
}
_INPUT = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a skill gave. `fault` says why `outputs` are not what its manifest promises."""

    outputs: Mapping[str, Any] | None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    id: str
    name: str
    description: str
    inputs: Schema
    outputs: Schema
    entrypoint: tuple[str, ...]
    packages: tuple[str, ...]
    """Installed for it, where policy allows it."""
    layer: Layer
    """Its limits, permissions and image: a ceiling for every call of it."""
    files: tuple[InputFile, ...] = field(repr=False)
    digest: str
    """sha256 over the manifest and every file."""

    def request(self, inputs: Mapping[str, Any], files: Sequence[InputFile] = ()) -> RunRequest:
        """The run that one call of it is.

        Raises:
            BadRequest: the inputs are not what the manifest asks for.
        """
        self.inputs.check(inputs, field="inputs")
        words = [self._filled(word, inputs) for word in self.entrypoint]
        language = _INTERPRETERS.get(words[0])
        own = {file.path: file for file in self.files}
        stdin = json.dumps(inputs).encode()
        if language is not None and len(words) > 1 and words[1] in own:
            code = own.pop(words[1]).content.decode()
            return RunRequest(
                language=language,
                code=code,
                args=tuple(words[2:]),
                files=tuple(own.values()),
                inputs=tuple(files),
                packages=self.packages,
                stdin=stdin,
            )
        if language in (Language.PYTHON, Language.BASH) and words[1:2] == ["-c"] and len(words) > 2:
            return RunRequest(
                language=language,
                code=words[2],
                args=tuple(words[3:]),
                files=self.files,
                inputs=tuple(files),
                packages=self.packages,
                stdin=stdin,
            )
        return RunRequest(
            language=language if self.packages else None,
            command=tuple(words),
            files=self.files,
            inputs=tuple(files),
            packages=self.packages,
            stdin=stdin,
        )

    def answer(
        self, exit_code: int | None, stdout: bytes, stderr: bytes, files: Sequence[tuple[str, bytes]]
    ) -> Answer:
        """What the program left, if it is what the manifest promises. All of it is hostile."""
        left = next((content for path, content in files if path == OUTPUT), None)
        if left is None:
            outputs: Any = {
                "exit_code": exit_code,
                "stdout": stdout.decode("utf-8", "replace"),
                "stderr": stderr.decode("utf-8", "replace"),
            }
        elif len(left) > MAX_OUTPUT_BYTES:
            return Answer(None, f"{OUTPUT} is larger than {MAX_OUTPUT_BYTES} bytes")
        else:
            try:
                outputs = json.loads(left, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                return Answer(None, f"{OUTPUT} is not JSON: {printable(error)}")
        try:
            self.outputs.check(outputs, field="outputs")
        except (BadRequest, LimitExceeded) as error:
            return Answer(None, error.message)
        return Answer(outputs)

    def check_files(self, files: Sequence[InputFile], rules: Iterable[PatternRules]) -> None:
        """Whether it may read what the caller gives it."""
        rules = (*rules, *self.layer.policy.paths)
        for file in files:
            paths.validate(file.path, field="files")
            if not allows(f"/workspace/inputs/{file.path}", rules):
                message = f"skill {self.id} may not read {printable(file.path)}; see its permissions.fs"
                raise PathNotAllowed(message, reason="outside_prefix", field="files")

    @property
    def runs_what_it_is_given(self) -> bool:
        """Its program is its caller's, not its own."""
        return self.entrypoint[1:2] == ("-c",) and any(map(_INPUT.fullmatch, self.entrypoint[2:3]))

    def _filled(self, word: str, inputs: Mapping[str, Any]) -> str:
        found = _INPUT.fullmatch(word)
        return word if found is None else str(inputs[found[1]])


class Skills:
    """All that a service has: its own and those of a folder, which win. Held in memory once they are read."""

    def __init__(self, folder: Path | None) -> None:
        """
        Raises:
            BadPolicy: one in the folder cannot be used.
        """
        self._of_folder = {} if folder is None else load_skills(folder)

    @cached_property
    def _by_id(self) -> Mapping[str, Skill]:
        """Ours are read when somebody asks: most who open a service do not."""
        return dict(sorted({**shipped(), **self._of_folder}.items()))

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._by_id.values())

    def get(self, skill_id: str, digest: str | None = None) -> Skill:
        """
        Raises:
            NotFound: there is none of exactly that id.
            Conflict: it is not the one that the caller means.
        """
        skill = self._by_id.get(skill_id)
        if skill is None:
            near = nearest(skill_id, self._by_id)
            raise NotFound(f"there is no skill {quoted(skill_id)}{near}", field="skill_id")
        if digest is not None and digest != skill.digest:
            raise Conflict(
                f"skill {skill_id} has the digest {skill.digest}, not the given one", field="digest"
            )
        return skill

    def refresh(self, submission: Submission) -> Submission:
        """As the skill it calls would have it now; NotFound or Conflict if that is not the same any more."""
        if submission.skill_id is None or submission.skill_digest is None:
            return submission
        return replace(submission, skill=self.get(submission.skill_id, submission.skill_digest).layer)


def shipped() -> dict[str, Skill]:
    with resources.as_file(resources.files("belljar") / "skills") as folder:
        return load_skills(folder)


def load_skills(folder: Path) -> dict[str, Skill]:
    """Every skill in a folder, by id; those that are pinned, if there are pins.

    Raises:
        BadPolicy: one of them cannot be used.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith(("_", ".")))
    except OSError as error:
        raise BadPolicy(f"{printable(folder)} cannot be read: {error.strerror}") from error
    pins = _pins(folder) if PINS in names else None
    skills = {name: load_skill(folder / name) for name in names if name != PINS}
    for skill in skills.values():
        if pins is not None and pins.get(skill.id) != skill.digest:
            raise BadPolicy(
                f"skill {skill.id} has the digest {skill.digest}, which is not the one in {PINS}; "
                "look at what changed, then `belljar skills pin`",
                field="digest",
            )
    return skills


def pin(folder: Path) -> Mapping[str, str]:
    """Write down the digest of every skill in a folder; from now on none else is used."""
    (folder / PINS).unlink(missing_ok=True)
    pins = {skill.id: skill.digest for skill in load_skills(folder).values()}
    (folder / PINS).write_text(json.dumps(pins, indent=2) + "\n", "utf-8")
    return pins


def _pins(folder: Path) -> dict[str, str]:
    root = from_json(read_text(folder / PINS), PINS)
    pins = {name: node.text() for name, node in root.entries().items()}
    for name, digest in pins.items():
        if not _DIGEST.fullmatch(digest):
            raise root.entries()[name].fault("is not a digest of 64 hexadecimal digits")
    return pins


def load_skill(folder: Path) -> Skill:
    """One skill, from its folder.

    Raises:
        BadPolicy: with the file, line and field at fault.
    """
    where = f"{folder.name}/{MANIFEST}"
    text = read_text(folder / MANIFEST)
    layer = manifests.loads(text, name=where)
    root = from_json(text, where)
    top = _needed(root, ("schema_version", "id", "name", "description", "interface", "runtime"))
    if top["schema_version"].text() not in VERSIONS:
        raise top["schema_version"].fault(f"is not a version that is known; write {quoted(VERSIONS[0])}")
    skill_id = top["id"].text()
    if skill_id != folder.name:
        raise top["id"].fault(f"must be the name of its folder, {quoted(folder.name)}")
    interface = _needed(top["interface"], ("inputs", "outputs"))
    runtime = _needed(top["runtime"], ("kind", "entrypoint"))
    inputs, outputs = read_schema(interface["inputs"]), read_schema(interface["outputs"])
    _check_permissions(top, layer)
    files = _files(folder)
    entrypoint = _entrypoint(runtime["entrypoint"], inputs)
    _check_program(runtime["entrypoint"], entrypoint, files)
    packages = tuple(one.text() for one in runtime["packages"].items()) if "packages" in runtime else ()
    if packages and _INTERPRETERS.get(entrypoint[0]) is not Language.PYTHON:
        raise runtime["packages"].fault("are for a Python program; begin the entrypoint with `python`")
    return Skill(
        id=skill_id,
        name=_short(top["name"], 100),
        description=_short(top["description"], 1000),
        inputs=inputs,
        outputs=outputs,
        entrypoint=entrypoint,
        packages=packages,
        layer=layer,
        files=tuple(file for file in files if file.path != MANIFEST),
        digest=sha256(canonical_json(digests(files))),
    )


def _needed(node: Node, names: Sequence[str]) -> dict[str, Node]:
    entries = node.entries()
    for name in names:
        if name not in entries:
            raise node.fault(f"needs {quoted(name)}")
    return entries


def _short(node: Node, most: int) -> str:
    text = node.text()
    if not text or len(text) > most or not text.isprintable():
        raise node.fault(f"must be 1 to {most} printable characters")
    return text


def _entrypoint(node: Node, inputs: Schema) -> tuple[str, ...]:
    words = node.items()
    if not words or _INPUT.fullmatch(words[0].text()):
        raise node.fault("must begin with the name of a program")
    always = inputs.texts & set(inputs.document.get("required", ()))
    for word in words:
        found = _INPUT.fullmatch(word.text())
        if found is not None and found[1] not in always:
            raise word.fault(f"{quoted(word.text())} is not an input that is required and a string")
    return tuple(word.text() for word in words)


def _check_permissions(top: Mapping[str, Node], layer: Layer) -> None:
    """Few and plain, because every file of a call is held against each."""
    for rules in layer.policy.paths:
        patterns = rules.allow or ()
        if len(patterns) > MAX_PATTERNS or any(pattern.count("*") > MAX_STARS for pattern in patterns):
            node = top["permissions"].entries()["fs"]
            raise node.fault(f"may have {MAX_PATTERNS} patterns, and a pattern {MAX_STARS} stars, at most")


def _check_program(node: Node, entrypoint: Sequence[str], files: Sequence[InputFile]) -> None:
    """A script is read by policy before it runs, so it must be text."""
    for file in files:
        if file.path in entrypoint[1:2]:
            try:
                file.content.decode()
            except UnicodeDecodeError:
                raise node.fault(f"{quoted(file.path)} is not text in UTF-8") from None


def _files(folder: Path) -> tuple[InputFile, ...]:
    """Everything in its folder, by descriptor: regular files only, few and small."""
    files, left = [], MAX_BYTES
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for entry in tree.listing(fd, max_entries=MAX_FILES):
            name = tree.display_name(entry.path)
            if isinstance(entry, tree.Skip):
                raise BadPolicy(f"{folder.name}: {name} cannot be part of a skill: {entry.reason}")
            path = paths.validate(tree.text_of(entry.path), field="files")
            content = tree.read_file(fd, entry.path, left)
            left -= len(content)
            files.append(InputFile(path, content))
    except tree.Refusal as refusal:
        raise BadPolicy(f"{folder.name}: a skill is at most {MAX_BYTES} bytes: {refusal}") from refusal
    except PathNotAllowed as error:
        raise BadPolicy(f"{folder.name}: {error.message}") from error
    finally:
        os.close(fd)
    return tuple(sorted(files, key=lambda file: file.path))


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
