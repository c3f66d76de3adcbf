"""What a shell command really runs: looks through the commands that run other commands.

    sudo env X=1 bash -c 'ls | rm -rf y'   ─►   sudo … · env … · bash … · ls · rm -rf y

A wrapper counts as a command itself, and so does what it starts, at any depth. Where the inner command
is put together only at run time (`bash -c "$X"`, `. file`, `$cmd`), the reading says so instead of
guessing. Programs with a language of their own (awk, python, make, git aliases, ssh) are not looked into.
"""

from __future__ import annotations

import getopt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from belljar.models import RiskTier
from belljar.policy.shell.grammar import DECLARATIONS, read_script
from belljar.policy.shell.script import (
    RUNTIME_WORDS,
    SUBSTITUTED,
    Assignment,
    Command,
    Fault,
    Word,
)

# `sudo env nice …` and `bash -c "bash -c …"`; more than this hides something. An inner script counts more,
# because it is read anew.
MAX_LAYERS = 16
_SCRIPT_LAYERS = 3

SHELLS = frozenset({"sh", "bash", "dash", "ash", "rbash"})
"""Shells whose language is read."""

OTHER_SHELLS = frozenset({"csh", "elvish", "fish", "ksh", "mksh", "nu", "pwsh", "tcsh", "xonsh", "zsh"})


@dataclass(frozen=True, slots=True)
class Obscure:
    """A place where only the run decides which command runs."""

    line: int
    reason: str
    tier: RiskTier = RiskTier.HIGH


@dataclass(frozen=True, slots=True)
class Reading:
    """Every command a script runs, as far as that can be known."""

    commands: tuple[Command, ...]
    obscure: tuple[Obscure, ...] = ()
    fault: Fault | None = None
    """Set if the script itself could not be read; then `commands` are those before the fault."""


def read_commands(script: str) -> Reading:
    return _read(script, 1, _Place())


def read_argv(argv: Sequence[str]) -> Reading:
    """The same for a command that is given as a list of words, without a shell."""
    command = Command(tuple(Word(text) for text in argv), 1)
    return _collected(_runs(command, _Place()), None)


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """How to find the command behind a wrapper's own options, in `getopt`'s notation."""

    short: str = ""
    long: str = ""
    operands: int = 0
    """Words between the options and the command."""
    assignments: bool = False
    """Whether `NAME=value` may come before the command."""
    inert: frozenset[str] = frozenset()
    """Options with which nothing is run."""
    opaque: frozenset[str] = frozenset()
    """Options that carry a command in a form that is not read."""
    bare: bool = True
    """Whether it is harmless without a command. Otherwise it starts a shell."""


_WRAPPERS = {
    "env": _Wrapper(
        "i0vu:C:S:",
        "ignore-environment null debug unset= chdir= split-string=",
        assignments=True,
        opaque=frozenset({"-S", "--split-string"}),
    ),
    "sudo": _Wrapper(
        "ABbEHikKlNnPSsvVC:D:g:h:p:R:r:T:t:U:u:",
        "askpass background preserve-env set-home login reset-timestamp list non-interactive preserve-groups "
        "stdin shell validate version close-from= chdir= group= host= prompt= chroot= role= command-timeout= "
        "type= other-user= user=",
        assignments=True,
        bare=False,
    ),
    "doas": _Wrapper("Lnsa:C:u:", bare=False),
    "nohup": _Wrapper(),
    "setsid": _Wrapper("cfw", "ctty fork wait"),
    "timeout": _Wrapper("vk:s:", "foreground preserve-status verbose kill-after= signal=", operands=1),
    "nice": _Wrapper("0123456789n:", "adjustment="),
    "ionice": _Wrapper("tc:n:p:P:u:", "ignore class= classdata= pid= pgid= uid="),
    "chrt": _Wrapper("abdfiormRvT:P:D:", "batch deadline fifo idle other rr verbose all-tasks", operands=1),
    "taskset": _Wrapper("ac", "all-tasks cpu-list", operands=1),
    "stdbuf": _Wrapper("i:o:e:", "input= output= error="),
    "unbuffer": _Wrapper("p"),
    "time": _Wrapper("apqvf:o:", "append portability quiet verbose format= output="),
    "command": _Wrapper("pvV", inert=frozenset({"-v", "-V"})),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cla:"),
    "chroot": _Wrapper("", "skip-chdir groups= userspec=", operands=1, bare=False),
    "strace": _Wrapper("cCdDfFhiknqrtTvVwxXyYzZa:A:b:e:E:I:o:O:p:P:s:S:u:U:"),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
}

_OPAQUE = frozenset(
    """
    at batch capsh crontab entr expect gdb ltrace newgrp nsenter parallel run-parts screen script setpriv sg
    start-stop-daemon systemd-run tmux unshare xvfb-run
    """.split()
)
"""Programs that start commands in too many ways to follow."""

_REBINDERS = frozenset({"alias", "bind", "compgen", "complete", "enable", "fc"})
"""Builtins that give a name another meaning, or run what a name is bound to."""

_REBINDING_OPTIONS = {"hash": "p", "mapfile": "C", "readarray": "C"}
"""Builtins that do so with an option."""

_SHELL_OPTIONS = "abcefhiklmnprstuvxBCDEHPTo:O:"
_SHELL_LONG_OPTIONS = "login noediting noprofile norc posix restricted verbose version help"
_XARGS_OPTIONS = "0optrxa:d:E:I:L:n:P:s:"
_XARGS_LONG_OPTIONS = (
    "null open-tty no-run-if-empty exit interactive show-limits verbose arg-file= delimiter= max-args= "
    "max-procs= max-chars= process-slot-var="
)
_FLOCK_OPTIONS = "senxuoFw:E:"
_FLOCK_LONG_OPTIONS = (
    "shared exclusive nonblock unlock close no-fork verbose timeout= wait= conflict-exit-code="
)
_WATCH_OPTIONS = "bcdegprtwxn:q:"
_WATCH_LONG_OPTIONS = (
    "beep color differences errexit chgexit precise no-title no-wrap exec interval= equexit="
)
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

# Builtins that evaluate the subscript of a name they are given: `unset 'a[$(rm)]'` runs rm.
_SUBSCRIPT_READERS = DECLARATIONS.union("[ let mapfile printf read readarray test unset wait".split())

_MEANINGS = frozenset(
    """
    BASHOPTS BASH_ENV ENV LD_AUDIT LD_LIBRARY_PATH LD_PRELOAD PATH PROMPT_COMMAND PS4 SHELLOPTS
    """.split()
)
"""Variables that decide which program a name stands for, or run something by themselves."""

_Found = Command | Obscure


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a command stands: behind how many others, and whether surely in bash."""

    layers: int = 0
    bash: bool = True

    def deeper(self, by: int = 1) -> _Place:
        return replace(self, layers=self.layers + by)


def _collected(found: Iterator[_Found], fault: Fault | None) -> Reading:
    commands: list[Command] = []
    obscure: list[Obscure] = []
    for item in found:
        if isinstance(item, Command):
            commands.append(item)
        else:
            obscure.append(item)
    return Reading(tuple(commands), tuple(obscure), fault)


def _read(text: str, line: int, place: _Place) -> Reading:
    script = read_script(text)

    def found() -> Iterator[_Found]:
        for command in script.commands:
            yield from _runs(_moved(command, line - 1), place)

    fault = script.fault if place.bash else script.fault or script.bash_only
    return _collected(found(), fault and replace(fault, line=fault.line + line - 1))


def _moved(command: Command, lines: int) -> Command:
    if not lines:
        return command
    redirects = tuple(replace(redirect, line=redirect.line + lines) for redirect in command.redirects)
    return replace(command, line=command.line + lines, redirects=redirects)


def base_name(name: str) -> str:
    """`/bin/rm` is `rm`; so is `./rm`."""
    return name.rstrip("/").rpartition("/")[2] or name


def _runs(command: Command, place: _Place) -> Iterator[_Found]:
    """The command and everything it starts."""
    yield command
    yield from _changed_meanings(command)
    if not command.words:
        return
    if command.name is None:
        yield Obscure(command.line, f"the name of '{command}' is only known at run time")
        return
    name = base_name(command.name)
    if name in _OPAQUE or name in OTHER_SHELLS:
        yield Obscure(command.line, f"what '{name}' starts is not read")
    elif (name in _REBINDERS and len(command.words) > 1) or (
        name in _REBINDING_OPTIONS and _may_have_flag(command.words[1:], _REBINDING_OPTIONS[name])
    ):
        yield Obscure(command.line, f"'{command}' gives names another meaning")
    elif place.layers >= MAX_LAYERS and (name in _WRAPPERS or name in _STARTERS):
        yield Obscure(command.line, f"'{command}' stands behind too many other commands")
        return
    try:
        if name in _WRAPPERS:
            yield from _wrapper(command, _WRAPPERS[name], place.deeper())
        elif name in _STARTERS:
            yield from _STARTERS[name](command, place.deeper())
    except _CannotTell:
        tier = RiskTier.CRITICAL if name in SHELLS else RiskTier.HIGH
        yield Obscure(command.line, f"what '{command}' starts cannot be told from its options", tier)


def _changed_meanings(command: Command) -> Iterator[Obscure]:
    """Assignments after which a name may run something else."""
    names = [assignment.name for assignment in command.assignments]
    values = [assignment.value for assignment in command.assignments]
    builtin, arguments = command.name or "", command.words[1:]
    if builtin in _SUBSCRIPT_READERS:
        values += arguments
    if builtin in DECLARATIONS:
        names += [word.shape.partition("=")[0] for word in arguments if "=" in word.shape]
        # A reference (-n) is a second name for a variable, under which it can be set unseen.
        if any(word.many or word.shape.startswith("$") for word in arguments) or _may_have_flag(
            arguments, "n"
        ):
            yield Obscure(command.line, f"which names '{command}' sets is only known at run time")
    elif builtin in ("read", "mapfile", "readarray", "getopts") or (
        builtin == "printf" and _may_have_flag(arguments[:1], "v")
    ):
        names += [word.shape.removeprefix("-v") for word in arguments]
    for name in names:
        if name in _MEANINGS:
            yield Obscure(command.line, f"setting {name} changes what is run")
    if any(
        value.static and "[" in value.shape and ("$(" in value.shape or "`" in value.shape)
        for value in values
    ):
        yield Obscure(command.line, "a subscript that holds a command may be run")


def _may_have_flag(words: Sequence[Word], letter: str) -> bool:
    return any(word.may_be_option and (letter in word.shape or not word.static) for word in words)


# One function for each way of naming the inner command


class _CannotTell(Exception):
    """The options leave open which word begins the inner command."""


def _options(
    words: Sequence[Word], short: str, long: str = ""
) -> tuple[list[tuple[str, str]], tuple[Word, ...]]:
    """A command's own options, and the words after them."""
    # A word of unknown text must not look like an option to getopt.
    texts = [word.shape if word.static else SUBSTITUTED for word in words]
    try:
        options, rest = getopt.getopt(texts, short, long.split())
    except getopt.GetoptError as exc:
        raise _CannotTell from exc
    used = len(words) - len(rest)
    if any(word.many for word in words[:used]):
        raise _CannotTell
    if rest and words[used].may_be_option and not words[used].static:
        raise _CannotTell
    return options, tuple(words[used:])


def _inner(command: Command, words: Sequence[Word], assignments: Sequence[Assignment] = ()) -> Command:
    return replace(command, words=tuple(words), assignments=tuple(assignments), calls_function=False)


def _wrapper(command: Command, wrapper: _Wrapper, place: _Place) -> Iterator[_Found]:
    options, words = _options(command.words[1:], wrapper.short, wrapper.long)
    given = {option for option, _ in options}
    if given & wrapper.inert:
        return
    if given & wrapper.opaque or any(word.many for word in words[: wrapper.operands]):
        raise _CannotTell
    words = words[wrapper.operands :]
    assignments: list[Assignment] = []
    if wrapper.assignments:
        if words and words[0].text == "-":
            words = words[1:]
        while words and "=" in words[0].shape.partition("$")[0]:
            name, _, value = words[0].shape.partition("=")
            assignments.append(Assignment(name, replace(words[0], shape=value)))
            words = words[1:]
    if words:
        yield from _runs(_inner(command, words, assignments), place)
    elif not wrapper.bare:
        yield _starts_shell(command)


def _starts_shell(command: Command) -> Obscure:
    return Obscure(command.line, f"'{command}' starts a shell that reads its commands from elsewhere")


def _shell(command: Command, place: _Place) -> Iterator[_Found]:
    place = replace(place, bash=base_name(command.name or "") in ("bash", "rbash"))
    options, words = _options(command.words[1:], _SHELL_OPTIONS, _SHELL_LONG_OPTIONS)
    given = {option for option, _ in options}
    # A lone '-' ends a shell's options, '+x' is one: getopt knows neither.
    if words and (words[0].text == "-" or words[0].shape.startswith("+")):
        raise _CannotTell
    if given & {"--version", "--help"}:
        return
    if "-c" in given:
        yield from _text(command, words[0] if words else RUNTIME_WORDS, place)
    elif words and "-s" not in given:
        yield from _file(command, place)
    else:
        redirects = [redirect for redirect in command.redirects if redirect.is_stdin]
        here = len(redirects) == 1 and redirects[0].operator in ("<<", "<<<")
        text, line = (redirects[0].target, redirects[0].line) if here else (RUNTIME_WORDS, command.line)
        yield from _text(command, text, place, line)


def _text(command: Command, word: Word, place: _Place, line: int = 0) -> Iterator[_Found]:
    """The commands of a text that a command runs as a script."""
    if word.text is None:
        reason = f"the text that '{command}' runs is only known at run time"
        yield Obscure(command.line, reason, RiskTier.CRITICAL)
        return
    reading = _read(word.text, line or command.line, place.deeper(_SCRIPT_LAYERS))
    for inner in reading.commands:
        yield replace(inner, fetched=True) if command.fetched else inner
    yield from reading.obscure
    if reading.fault:
        yield Obscure(reading.fault.line, f"the inner script cannot be read: {reading.fault.reason}")


def _joined(command: Command, words: Sequence[Word], place: _Place) -> Iterator[_Found]:
    text = Word(" ".join(word.shape for word in words), all(word.static for word in words))
    yield from _text(command, text, place)


def _eval(command: Command, place: _Place) -> Iterator[_Found]:
    words = command.words[1:]
    yield from _joined(command, words[1:] if words[:1] == (Word("--"),) else words, place)


def _file(command: Command, _: _Place) -> Iterator[_Found]:
    yield Obscure(command.line, f"'{command}' runs the commands of a file")


def _trap(command: Command, place: _Place) -> Iterator[_Found]:
    options, words = _options(command.words[1:], "lpP")
    if not options and len(words) > 1 and words[0].text not in ("", "-"):
        yield from _text(command, words[0], place)


def _xargs(command: Command, place: _Place) -> Iterator[_Found]:
    options, words = _options(command.words[1:], _XARGS_OPTIONS, _XARGS_LONG_OPTIONS)
    marks = [value for option, value in options if option == "-I"]
    if words:
        inner = _filled(words, marks[-1]) if marks else (*words, RUNTIME_WORDS)
        yield from _runs(replace(_inner(command, inner), redirects=()), place)


def _filled(words: Sequence[Word], mark: str, by: str = SUBSTITUTED) -> tuple[Word, ...]:
    """The words with the mark replaced by something that is only known at run time."""
    return tuple(
        replace(word, shape=word.shape.replace(mark, by), static=False)
        if mark and mark in word.shape
        else word
        for word in words
    )


def _find(command: Command, place: _Place) -> Iterator[_Found]:
    words = command.words[1:]
    unknown = any(word.many for word in words)
    runtime = False
    at = 0
    while at < len(words):
        if words[at].text in _FIND_ACTIONS:
            start = at = at + 1
            while at < len(words) and not _ends_action(words, at):
                at += 1
            # What is found lies below a starting point, so it is never an option.
            if inner := _filled(words[start:at], "{}", f"./{SUBSTITUTED}"):
                yield from _runs(_inner(command, inner), place)
        else:
            runtime = runtime or not words[at].static
            # The end of an action that we did not see begin.
            unknown = unknown or (runtime and words[at].text in (";", "+"))
        at += 1
    if unknown:
        yield Obscure(command.line, f"'{command}' may be given an action at run time")


def _ends_action(words: Sequence[Word], at: int) -> bool:
    return words[at].text == ";" or (words[at].text == "+" and words[at - 1].text == "{}")


def _flock(command: Command, place: _Place) -> Iterator[_Found]:
    _, words = _options(command.words[1:], _FLOCK_OPTIONS, _FLOCK_LONG_OPTIONS)
    if not words or words[0].many:
        raise _CannotTell
    words = words[1:]
    if words and words[0].text in ("-c", "--command"):
        text = words[1] if len(words) > 1 else RUNTIME_WORDS
        yield from _text(command, text, replace(place, bash=False))
    elif words and words[0].may_be_option:
        raise _CannotTell
    elif words:
        yield from _runs(_inner(command, words), place)


def _watch(command: Command, place: _Place) -> Iterator[_Found]:
    _, words = _options(command.words[1:], _WATCH_OPTIONS, _WATCH_LONG_OPTIONS)
    if words:
        yield from _joined(command, words, replace(place, bash=False))


def _su(command: Command, place: _Place) -> Iterator[_Found]:
    words = command.words[1:]
    for index, word in enumerate(words[:-1]):
        if word.text in ("-c", "--command"):
            yield from _text(command, words[index + 1], replace(place, bash=False))
            return
    yield _starts_shell(command)


_STARTERS: dict[str, Callable[[Command, _Place], Iterator[_Found]]] = {
    **dict.fromkeys(SHELLS, _shell),
    ".": _file,
    "eval": _eval,
    "find": _find,
    "flock": _flock,
    "runuser": _su,
    "source": _file,
    "su": _su,
    "trap": _trap,
    "watch": _watch,
    "xargs": _xargs,
}
