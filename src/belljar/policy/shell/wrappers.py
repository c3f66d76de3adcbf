"""What a shell command really runs: looks through the commands that run other commands.

    sudo env X=1 bash -c 'ls | rm -rf y'   ─►   sudo … · env … · bash … · ls · rm -rf y

A wrapper counts as a command itself, and so does what it starts, at any depth. Where the inner command
is put together only at run time (`bash -c "$X"`, `. file`, `$cmd`), the reading says so instead of
guessing. Programs with a language of their own (awk, python, make, git aliases, ssh) are not looked into.
"""

from __future__ import annotations

import getopt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from belljar.models import RiskTier
from belljar.policy.shell.grammar import DECLARATIONS, read_script
from belljar.policy.shell.script import (
    RUNTIME_WORDS,
    SUBSTITUTED,
    Assignment,
    Command,
    Fault,
    Redirect,
    Word,
)

# `sudo env nice …` and `bash -c "bash -c …"`; more than this hides something. An inner script counts more,
# because it is read anew.
MAX_LAYERS = 12
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
    {
        "at", "batch", "capsh", "crontab", "entr", "expect", "gdb", "ltrace", "nsenter", "parallel",
        "run-parts", "screen", "script", "setpriv", "sg", "newgrp", "start-stop-daemon", "systemd-run",
        "tmux", "unshare", "xvfb-run",
    }
)  # fmt: skip
"""Programs that start commands in too many ways to follow."""

_FILE_READERS = frozenset({".", "source"})
_REBINDERS = frozenset({"alias", "bind", "compgen", "complete", "enable", "fc"})
"""Builtins that give a name another meaning or run what a name is bound to."""

_SHELL_OPTIONS = "abcefhiklmnprstuvxBCDEHPTo:O:"
_SHELL_LONG_OPTIONS = "login noediting noprofile norc posix restricted verbose version help"
_XARGS_OPTIONS = "0optrxa:d:E:I:L:n:P:s:"
_XARGS_LONG_OPTIONS = (
    "null open-tty no-run-if-empty exit interactive show-limits verbose arg-file= delimiter= max-args= "
    "max-procs= max-chars= process-slot-var="
)
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

# Builtins that evaluate the subscript of a name they are given: `unset 'a[$(rm)]'` runs rm.
_SUBSCRIPT_READERS = DECLARATIONS | {
    "[",
    "let",
    "mapfile",
    "printf",
    "read",
    "readarray",
    "test",
    "unset",
    "wait",
}

_MEANINGS = frozenset(
    {
        "BASHOPTS",
        "BASH_ENV",
        "ENV",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PATH",
        "PROMPT_COMMAND",
        "PS4",
        "SHELLOPTS",
    }
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


def _script(text: str, line: int, place: _Place, fetched: bool) -> Iterator[_Found]:
    """The commands of a script that another command runs."""
    reading = _read(text, line, place.deeper(_SCRIPT_LAYERS))
    for command in reading.commands:
        yield replace(command, fetched=True) if fetched else command
    yield from reading.obscure
    if reading.fault:
        yield Obscure(reading.fault.line, f"the inner script cannot be read: {reading.fault.reason}")


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
    if place.layers >= MAX_LAYERS:
        yield Obscure(command.line, f"'{command}' is wrapped in more than {MAX_LAYERS} commands")
        return
    place = place.deeper()
    name = base_name(command.name)
    arguments = command.words[1:]
    if name in SHELLS:
        yield from _shell(command, place)
    elif name == "eval":
        yield from _joined_script(
            command, arguments[1:] if command.words[1:2] == (Word("--"),) else arguments, place
        )
    elif name in _FILE_READERS:
        yield Obscure(command.line, f"'{command}' runs the commands of a file")
    elif name == "trap":
        yield from _trap(command, place)
    elif name == "xargs":
        yield from _xargs(command, place)
    elif name == "find":
        yield from _find(command, place)
    elif name == "flock":
        yield from _flock(command, place)
    elif name == "watch":
        yield from _watch(command, place)
    elif name in ("su", "runuser"):
        yield from _su(command, place)
    elif name in _WRAPPERS:
        yield from _wrapper(command, _WRAPPERS[name], place)
    elif name in _OPAQUE or name in OTHER_SHELLS:
        yield Obscure(command.line, f"what '{name}' starts is not read")
    elif name in _REBINDERS and arguments:
        yield Obscure(command.line, f"'{command}' gives names another meaning")
    elif (name == "hash" and _has_option(arguments, "-p")) or (
        name in ("mapfile", "readarray") and _has_option(arguments, "-C")
    ):
        yield Obscure(command.line, f"'{command}' gives names another meaning")


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
        if any(word.many or word.shape.startswith("$") for word in arguments) or _has_option(arguments, "-n"):
            yield Obscure(command.line, f"which names '{command}' sets is only known at run time")
    elif builtin in ("read", "mapfile", "readarray", "getopts") or (
        builtin == "printf" and _has_option(arguments[:1], "-v")
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


def _has_option(words: Sequence[Word], option: str) -> bool:
    return any(word.shape.startswith(option) if word.static else word.may_be_option for word in words)


# One function for each way of naming the inner command


def _options(
    words: Sequence[Word], short: str, long: str
) -> tuple[list[tuple[str, str]], tuple[Word, ...]] | None:
    """A command's own options and the words after them; None if they cannot be told apart."""
    # A word of unknown text must not look like an option to getopt.
    texts = [word.shape if word.static else SUBSTITUTED for word in words]
    try:
        options, rest = getopt.getopt(texts, short, [name for name in long.split(" ") if name])
    except getopt.GetoptError:
        return None
    used = len(words) - len(rest)
    if any(word.many for word in words[:used]) or (
        rest and words[used].may_be_option and not words[used].static
    ):
        return None
    return options, tuple(words[used:])


def _unknown_options(command: Command) -> Obscure:
    return Obscure(command.line, f"what '{command}' starts cannot be told from its options")


def _inner(command: Command, words: Sequence[Word], assignments: Sequence[Assignment] = ()) -> Command:
    return replace(command, words=tuple(words), assignments=tuple(assignments), calls_function=False)


def _wrapper(command: Command, wrapper: _Wrapper, place: _Place) -> Iterator[_Found]:
    parsed = _options(command.words[1:], wrapper.short, wrapper.long)
    if parsed is None:
        yield _unknown_options(command)
        return
    options, words = parsed
    given = {option for option, _ in options}
    if given & wrapper.inert:
        return
    if given & wrapper.opaque:
        yield _unknown_options(command)
        return
    if any(word.many for word in words[: wrapper.operands]):
        yield _unknown_options(command)
        return
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
        yield Obscure(command.line, f"'{command}' starts a shell that reads its commands from elsewhere")


def _shell(command: Command, place: _Place) -> Iterator[_Found]:
    place = replace(place, bash=base_name(command.name or "") in ("bash", "rbash"))
    parsed = _options(command.words[1:], _SHELL_OPTIONS, _SHELL_LONG_OPTIONS)
    if parsed is None:
        yield replace(_unknown_options(command), tier=RiskTier.CRITICAL)
        return
    options, words = parsed
    given = {option for option, _ in options}
    if given & {"--version", "--help"}:
        return
    # A lone '-' ends a shell's options, '+x' is one: getopt knows neither.
    if words and (words[0].text == "-" or words[0].shape.startswith("+")):
        yield replace(_unknown_options(command), tier=RiskTier.CRITICAL)
        return
    if "-c" in given:
        yield from _text_script(command, words[0] if words else RUNTIME_WORDS, command.line, place)
    elif words and "-s" not in given:
        yield Obscure(command.line, f"'{command}' runs the commands of a file")
    else:
        redirects = [redirect for redirect in command.redirects if redirect.is_stdin]
        source = redirects[0] if len(redirects) == 1 else Redirect("<", RUNTIME_WORDS, command.line)
        text = source.target if source.operator in ("<<", "<<<") else RUNTIME_WORDS
        yield from _text_script(command, text, source.line, place)


def _text_script(command: Command, word: Word, line: int, place: _Place) -> Iterator[_Found]:
    if word.text is None:
        yield Obscure(
            command.line, f"the text that '{command}' runs is only known at run time", RiskTier.CRITICAL
        )
    else:
        yield from _script(word.text, line, place, command.fetched)


def _joined_script(command: Command, words: Sequence[Word], place: _Place) -> Iterator[_Found]:
    joined = Word(" ".join(word.shape for word in words), all(word.static for word in words))
    yield from _text_script(command, joined, command.line, place)


def _trap(command: Command, place: _Place) -> Iterator[_Found]:
    parsed = _options(command.words[1:], "lpP", "")
    if parsed is None:
        yield _unknown_options(command)
        return
    options, words = parsed
    if not options and len(words) > 1 and words[0].text not in ("", "-"):
        yield from _text_script(command, words[0], command.line, place)


def _xargs(command: Command, place: _Place) -> Iterator[_Found]:
    parsed = _options(command.words[1:], _XARGS_OPTIONS, _XARGS_LONG_OPTIONS)
    if parsed is None:
        yield _unknown_options(command)
        return
    options, words = parsed
    marks = [value for option, value in options if option == "-I"]
    if not words:
        return
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
    place = replace(place, bash=False)
    parsed = _options(
        command.words[1:],
        "senxuoFw:E:",
        "shared exclusive nonblock unlock close no-fork verbose timeout= wait= conflict-exit-code=",
    )
    if parsed is None or not parsed[1] or parsed[1][0].many:
        yield _unknown_options(command)
        return
    words = parsed[1][1:]
    if words and words[0].text in ("-c", "--command"):
        yield from _text_script(command, words[1] if len(words) > 1 else RUNTIME_WORDS, command.line, place)
    elif words and words[0].may_be_option:
        yield _unknown_options(command)
    elif words:
        yield from _runs(_inner(command, words), place)


def _watch(command: Command, place: _Place) -> Iterator[_Found]:
    place = replace(place, bash=False)
    parsed = _options(
        command.words[1:],
        "bcdegprtwxn:q:",
        "beep color differences errexit chgexit precise no-title no-wrap exec interval= equexit=",
    )
    if parsed is None:
        yield _unknown_options(command)
    elif parsed[1]:
        yield from _joined_script(command, parsed[1], place)


def _su(command: Command, place: _Place) -> Iterator[_Found]:
    place = replace(place, bash=False)
    words = command.words[1:]
    for index, word in enumerate(words):
        if word.text in ("-c", "--command") and index + 1 < len(words):
            yield from _text_script(command, words[index + 1], command.line, place)
            return
    yield Obscure(command.line, f"'{command}' starts a shell that reads its commands from elsewhere")
