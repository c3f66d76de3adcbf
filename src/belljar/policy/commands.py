"""Which shell commands a policy lets through, and which have the shape of an attack.

The rules are checked on the parsed command, never on the text: each command in pipes, lists,
substitutions, function bodies, `bash -c` strings and behind wrappers counts by itself.

    pattern      denied when                                   allowed when
    rm           the last part of the name is `rm`,            the name is `rm`, or `rm` in a directory
                 in whatever directory                         of the system
    rm -rf       … and the flags r and f are all there, in     … and the same flags are there
                 any order and spelling (-fr, -r -f, -R,
                 --recursive --force)
    git push     … and `push` is among the other words         … and the other words begin with `push`
    python3.*    names and words are globs                     the same

A deny pattern also matches where an argument that only the run knows could complete it. What cannot be
known (`$cmd`, `eval "$x"`, `. file`) or not be parsed is refused as soon as any list is in force.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from belljar.errors import CommandNotAllowed
from belljar.models import Finding, PatternRules, RiskTier
from belljar.policy.shell.script import Command, Word
from belljar.policy.shell.wrappers import Reading, base_name, read_argv, read_commands

SYSTEM_DIRECTORIES = frozenset(
    {"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}
)


def check_commands(script: str, rules: Sequence[PatternRules]) -> None:
    """Raises CommandNotAllowed unless every layer lets every command of the script through.

    A call of a function that the script surely defined before needs no entry on an allow-list: the commands
    of its body are checked. Builtins need one like any other command.
    """
    in_force = [rule for rule in rules if rule.allow is not None or rule.deny]
    if in_force:
        _check(read_commands(script), in_force)


def check_argv(argv: Sequence[str], rules: Sequence[PatternRules]) -> None:
    """The same for a command given as a list of words."""
    in_force = [rule for rule in rules if rule.allow is not None or rule.deny]
    if in_force:
        if not argv:
            raise CommandNotAllowed(
                f"no command is given, and layer '{in_force[0].layer}' lists the allowed ones"
            )
        _check(read_argv(argv), in_force)


def _check(reading: Reading, rules: Sequence[PatternRules]) -> None:
    # A call counts as a call of the script's own function only while nothing can undefine it.
    own_functions = not any(command.name == "unset" for command in reading.commands)
    if reading.fault:
        raise CommandNotAllowed(
            f"line {reading.fault.line}: {reading.fault.reason}, so the script cannot be checked against the "
            f"command list of layer '{rules[0].layer}'"
        )
    for rule in rules:
        denied = [_Pattern.parse(text) for text in rule.deny]
        allowed = None if rule.allow is None else [_Pattern.parse(text) for text in rule.allow]
        for command in reading.commands:
            if command.name is None:
                continue
            for pattern in denied:
                if pattern.may_deny(command):
                    raise CommandNotAllowed(
                        f"line {command.line}: '{command}' is denied by layer '{rule.layer}', "
                        f"pattern '{pattern.text}'{pattern.hint(command)}"
                    )
            if allowed is None or (command.calls_function and own_functions):
                continue
            if not any(pattern.allows(command) for pattern in allowed):
                raise CommandNotAllowed(
                    f"line {command.line}: '{command}' is not among the commands "
                    f"that layer '{rule.layer}' allows"
                )
    for obscure in reading.obscure:
        raise CommandNotAllowed(
            f"line {obscure.line}: {obscure.reason}, so it cannot be checked against the command list of "
            f"layer '{rules[0].layer}'; write out what is to be run"
        )


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The words after a command's name, sorted."""

    written: frozenset[str]
    """Every option as it stands."""
    letters: frozenset[str]
    """Of all single-dash options."""
    long: tuple[str, ...]
    """Names of the double-dash options."""
    operands: tuple[Word, ...]
    open_ended: bool
    """Whether the run may add options."""

    @classmethod
    def of(cls, words: Sequence[Word]) -> _Arguments:
        options: list[str] = []
        operands: list[Word] = []
        open_ended = False
        only_operands = False
        for word in words:
            if not only_operands and word.text == "--":
                only_operands = True
            elif only_operands or not word.may_be_option or word.text == "-":
                operands.append(word)
            elif word.static:
                options.append(word.shape)
            else:
                operands.append(word)
                open_ended = True
        return cls(
            frozenset(options),
            frozenset("".join(option[1:] for option in options if option[1] != "-")),
            tuple(option[2:].partition("=")[0] for option in options if option[1] == "-"),
            tuple(operands),
            open_ended,
        )

    def has_letter(self, letter: str) -> bool:
        """`-r` is also `-R` and any long option that begins with r: wide, for denying."""
        folded = letter.lower()
        return any(other.lower() == folded for other in self.letters) or any(
            name[:1].lower() == folded for name in self.long
        )

    def has_long(self, name: str) -> bool:
        """Also abbreviated, as GNU's getopt takes it, or as its first letter."""
        return any(given and name.startswith(given) for given in self.long) or any(
            letter.lower() == name[:1].lower() for letter in self.letters
        )

    def has_option(self, option: str) -> bool:
        if option in self.written:
            return True
        if option.startswith("--"):
            return self.has_long(option[2:].partition("=")[0])
        return all(self.has_letter(letter) for letter in option[1:])


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str
    name: str
    options: tuple[str, ...]
    operands: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> _Pattern:
        name, *words = text.split() or [""]
        options = tuple(word for word in words if word.startswith("-") and len(word) > 1)
        return cls(text, name, options, tuple(word for word in words if word not in options))

    def may_deny(self, command: Command) -> bool:
        if not fnmatchcase(base_name(command.name or ""), base_name(self.name)):
            return False
        if not (self.options or self.operands):
            return True
        arguments = _Arguments.of(command.words[1:])
        if not arguments.open_ended and not all(arguments.has_option(option) for option in self.options):
            return False
        wanted = list(self.operands)
        for word in arguments.operands:
            if wanted and word.many:
                return True
            if wanted and (not word.static or fnmatchcase(word.shape, wanted[0])):
                wanted.pop(0)
        return not wanted

    def hint(self, command: Command) -> str:
        if self.options and _Arguments.of(command.words[1:]).open_ended:
            return " (an argument may turn out to be an option; put '--' before the operands)"
        return ""

    def allows(self, command: Command) -> bool:
        name = command.name or ""
        directory, _, last = name.rpartition("/")
        if not (
            fnmatchcase(name, self.name) or (directory in SYSTEM_DIRECTORIES and fnmatchcase(last, self.name))
        ):
            return False
        arguments = _Arguments.of(command.words[1:])
        for option in self.options:
            letters = not option.startswith("--") and set(option[1:]) <= arguments.letters
            if option not in arguments.written and not letters:
                return False
        given = arguments.operands[: len(self.operands)]
        return len(given) == len(self.operands) and all(
            word.static and fnmatchcase(word.shape, wanted)
            for word, wanted in zip(given, self.operands, strict=True)
        )


# Shapes of an attack

_VITAL = frozenset(
    f"/{name}" for name in "bin boot dev etc home lib lib64 opt proc root sbin srv sys usr var".split()
)
_NO_DISKS = tuple(f"/dev/{name}" for name in "null stdout stderr tty fd/ shm/ zero full tcp/ udp/".split())
_RECURSIVE_TOOLS = {"rm": "deletes", "chmod": "opens", "chown": "takes over", "chgrp": "takes over"}
_DISK_TOOLS = frozenset(
    {"tee", "cp", "mv", "shred", "wipefs", "blkdiscard", "mkswap", "sgdisk", "fdisk", "parted"}
)


def shapes_of(reading: Reading) -> tuple[Finding, ...]:
    """What no honest script does: wipe the system or a disk, or drown it in processes."""
    harms = [(reason, command.line) for command in reading.commands for reason in _harms(command)]
    harms += [
        (f"a fork bomb: {name} starts itself over and over", line) for name, line in _fork_bombs(reading)
    ]
    return tuple(Finding(RiskTier.CRITICAL, reason[:160], line) for reason, line in dict.fromkeys(harms))


def _fork_bombs(reading: Reading) -> Iterator[tuple[str, int]]:
    """Whatever calls itself at least twice, and not one call after the other."""
    calls: dict[str, list[Command]] = {}
    for command in reading.commands:
        name = command.words[0].shape if command.words else ""
        if name in command.inside or name == "$0":
            calls.setdefault(name, []).append(command)
    for name, itself in calls.items():
        if len(itself) > 1 and any(command.concurrent for command in itself):
            yield name, itself[0].line


def _harms(command: Command) -> list[str]:
    reasons = []
    arguments = _Arguments.of(command.words[1:])
    name = base_name(command.name or "")
    if name in _RECURSIVE_TOOLS:
        if "no-preserve-root" in arguments.long:
            reasons.append(f"{name} without protection of /")
        if {"r", "R"} & arguments.letters or arguments.has_long("recursive"):
            reasons += [
                f"{name} -R {_RECURSIVE_TOOLS[name]} everything under {word.shape}"
                for word in arguments.operands
                if _is_vital(word)
            ]
    if name == "find" and any(word.text == "-delete" for word in command.words):
        reasons += [
            f"find deletes everything under {word.shape}" for word in arguments.operands if _is_vital(word)
        ]
    if name == "mkfs" or name.startswith("mkfs.") or name == "mke2fs":
        reasons.append(f"{name} formats a disk")
    if name == "dd":
        outputs = (word.shape[3:] for word in command.words if word.shape.startswith("of="))
        reasons += [f"dd writes onto {device}" for device in _devices(outputs)]
    if name in _DISK_TOOLS:
        reasons += [
            f"{name} writes onto {device}" for device in _devices(word.shape for word in arguments.operands)
        ]
    targets = (redirect.target.shape for redirect in command.redirects if ">" in redirect.operator)
    reasons += [f"output overwrites {device}" for device in _devices(targets)]
    return reasons


def _is_vital(word: Word) -> bool:
    path = word.shape.rstrip("*")
    if path.startswith("~"):
        return "/" not in path.rstrip("/")
    if path.rstrip("/") == "$HOME":
        return True
    # normpath keeps two leading slashes.
    path = posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else ""
    return path == "/" or path in _VITAL


def _devices(targets: Iterable[str]) -> list[str]:
    return [target for target in targets if target.startswith("/dev/") and not target.startswith(_NO_DISKS)]
