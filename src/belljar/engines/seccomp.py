"""Which system calls a program in a jar may make: one profile, and its compiler to a kernel filter.

`seccomp.json` is the profile, in the format that Docker takes, so every engine enforces the same file. The
jail has no libseccomp to hand it to: `compile_profile` turns it into classic BPF, and the launcher installs
the bytes. What the profile allows runs, what is known to be dangerous answers EPERM, and what it does not
mention answers ENOSYS, as if the kernel were older, because programs know how to live with that. Only a call
by another architecture's table (i386, x32) kills.

The meaning of a profile must not depend on who compiles it, so some of the format is refused:

- Rules of one call that answer differently may not overlap. libseccomp does not try rules in order; next to
  an unconditional rule it silently drops the conditional ones, so "deny this argument, allow the rest" would
  allow everything. The shipped profile spells out "the rest" as bit patterns that exclude the denied value.
- Two tests of one argument in one rule: libseccomp refuses them, so runc takes them for alternatives.
- SCMP_CMP_NE in a rule that allows, and the order comparisons (LT, LE, GE, GT) anywhere. A filter sees 64-bit
  registers, but most arguments are ints, of which the kernel drops the upper half: with garbage there, a
  forbidden value is "not equal" and "greater". A masked test of the low half sees what the kernel will see.
"""

from __future__ import annotations

import difflib
import errno
import json
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import combinations
from typing import cast

from belljar.engines.syscall_numbers import ARCHITECTURES, syscall_numbers
from belljar.errors import BadConfig

__all__ = ["compile_profile", "load_profile"]


def load_profile() -> dict[str, object]:
    """The shipped profile, as Docker wants it in `seccomp=` and as `compile_profile` takes it."""
    text = resources.files("belljar.engines").joinpath("seccomp.json").read_text(encoding="utf-8")
    return cast("dict[str, object]", json.loads(text))


def compile_profile(profile: Mapping[str, object], arch: str) -> bytes:
    """An array of `struct sock_filter` for `arch`, which is named as `platform.machine()` names it.

    A call that `arch` does not have is left out. Raises BadConfig, with the field, for a profile that is
    malformed, that does not list `arch`, or whose meaning would depend on its compiler.
    """
    numbers = syscall_numbers(arch)
    default, rules = _read_profile(_object(profile, "profile"), arch)
    decisions = {numbers[name]: rules[name] for name in rules if name in numbers}
    program = _assemble(default, decisions, arch)
    if len(program) > _MAX_INSTRUCTIONS:
        raise BadConfig(
            f"the profile needs {len(program)} instructions, but the kernel takes {_MAX_INSTRUCTIONS}; "
            "use fewer rules with arguments",
            field="syscalls",
        )
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


# --- the profile -------------------------------------------------------------------------------------------

_ALL = (1 << 64) - 1
_ARCHITECTURE_NAMES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_COMPARISONS = ("SCMP_CMP_EQ", "SCMP_CMP_NE", "SCMP_CMP_MASKED_EQ")

# Answers of a filter, from <linux/seccomp.h>.
_RET_KILL_PROCESS = 0x80000000
_RET_ERRNO = 0x00050000
_RET_ALLOW = 0x7FFF0000


@dataclass(frozen=True)
class _Test:
    """`(argument & mask) == value`, or its opposite, which always looks at all 64 bits."""

    index: int
    mask: int
    value: int
    equal: bool = True


@dataclass(frozen=True)
class _Rule:
    action: int
    tests: tuple[_Test, ...]  # all must hold


_Rules = tuple[_Rule, ...]  # of one call: alternatives, in no order


def _read_profile(profile: Mapping[str, object], arch: str) -> tuple[int, dict[str, _Rules]]:
    _check_keys(profile, "", {"defaultAction", "defaultErrnoRet", "archMap", "architectures", "syscalls"})
    if profile.get("defaultAction") != "SCMP_ACT_ERRNO":
        raise BadConfig(
            "defaultAction must be SCMP_ACT_ERRNO: a profile lists what is allowed, never only what is not",
            field="defaultAction",
        )
    default = _RET_ERRNO | _integer(profile, "defaultErrnoRet", "", least=1, most=4095, default=errno.EPERM)
    if _ARCHITECTURE_NAMES[arch] not in _read_architectures(profile):
        raise BadConfig(
            f"the profile does not list {_ARCHITECTURE_NAMES[arch]}; add it to archMap", field="archMap"
        )

    known = set().union(*(syscall_numbers(each) for each in ARCHITECTURES))
    rules: defaultdict[str, list[_Rule]] = defaultdict(list)
    for number, entry in enumerate(_list(profile, "syscalls", "")):
        field = f"syscalls[{number}]"
        rule, names = _read_rule(_object(entry, field), field)
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise BadConfig(
                    f"{field}.names: there is no system call {name!r}"
                    + (f"; did you mean {near[0]!r}?" if near else "; remove it"),
                    field=f"{field}.names",
                )
            rules[name].append(rule)
    for name, alternatives in rules.items():
        if any(a.action != b.action and _overlap(a, b) for a, b in combinations(alternatives, 2)):
            raise BadConfig(
                f"two rules for {name!r} give different answers to the same arguments; make them disjoint",
                field="syscalls",
            )
    return default, {name: tuple(alternatives) for name, alternatives in rules.items()}


def _read_architectures(profile: Mapping[str, object]) -> set[str]:
    if ("archMap" in profile) == ("architectures" in profile):
        raise BadConfig("a profile has either archMap or architectures; give one of them", field="archMap")
    if "architectures" in profile:
        return set(_strings(profile, "architectures", ""))
    listed: set[str] = set()
    for number, item in enumerate(_list(profile, "archMap", "")):
        field = f"archMap[{number}]"
        entry = _object(item, field)
        _check_keys(entry, field, {"architecture", "subArchitectures"})
        if entry.get("subArchitectures"):
            raise BadConfig(
                f"{field}.subArchitectures must be empty: a second table of calls goes around the rules",
                field=f"{field}.subArchitectures",
            )
        name = entry.get("architecture")
        if not isinstance(name, str):
            raise BadConfig(f"{field}.architecture must be a name", field=f"{field}.architecture")
        listed.add(name)
    return listed


def _read_rule(entry: Mapping[str, object], field: str) -> tuple[_Rule, list[str]]:
    # `includes` and `excludes` are refused here too: a rule that is there or not by kernel and capability
    # is a second policy that nobody reads.
    _check_keys(entry, field, {"names", "action", "errnoRet", "args", "comment"})
    names = _strings(entry, "names", field)
    if not names:
        raise BadConfig(f"{field}.names is empty; name the system calls", field=f"{field}.names")
    match entry.get("action"):
        case "SCMP_ACT_ALLOW" if "errnoRet" not in entry:
            action = _RET_ALLOW
        case "SCMP_ACT_ERRNO":
            action = _RET_ERRNO | _integer(entry, "errnoRet", field, least=1, most=4095, default=errno.EPERM)
        case _:
            raise BadConfig(
                f"{field}.action must be SCMP_ACT_ALLOW, without errnoRet, or SCMP_ACT_ERRNO",
                field=f"{field}.action",
            )
    args = _list(entry, "args", field) if entry.get("args") is not None else []
    tests: list[_Test] = []
    for number, item in enumerate(args):
        where = f"{field}.args[{number}]"
        test = _read_test(_object(item, where), where)
        if any(test.index == other.index for other in tests):
            raise BadConfig(
                f"{where}.index: argument {test.index} is tested twice in one rule; write two rules",
                field=f"{where}.index",
            )
        if action == _RET_ALLOW and not test.equal:
            raise BadConfig(
                f"{where}.op: a rule that allows may not use SCMP_CMP_NE, which garbage in the upper half of "
                "an int satisfies; list what is allowed with SCMP_CMP_MASKED_EQ",
                field=f"{where}.op",
            )
        tests.append(test)
    return _Rule(action, tuple(tests)), names


def _read_test(entry: Mapping[str, object], field: str) -> _Test:
    _check_keys(entry, field, {"index", "value", "valueTwo", "op"})
    index = _integer(entry, "index", field, least=0, most=5)
    value = _integer(entry, "value", field, least=0, most=_ALL)
    second = _integer(entry, "valueTwo", field, least=0, most=_ALL, default=0)
    op = entry.get("op")
    if op not in _COMPARISONS:
        raise BadConfig(f"{field}.op must be one of {_listed(_COMPARISONS)}", field=f"{field}.op")
    if op == "SCMP_CMP_MASKED_EQ":
        if second & ~value:
            raise BadConfig(
                f"{field}.valueTwo has bits outside the mask in value, so it never matches; clear them",
                field=f"{field}.valueTwo",
            )
        return _Test(index, mask=value, value=second)
    if second:
        raise BadConfig(
            f"{field}.valueTwo has a meaning only with SCMP_CMP_MASKED_EQ; remove it",
            field=f"{field}.valueTwo",
        )
    return _Test(index, mask=_ALL, value=value, equal=op == "SCMP_CMP_EQ")


def _overlap(one: _Rule, other: _Rule) -> bool:
    return all(_both_can_hold(a, b) for a in one.tests for b in other.tests if a.index == b.index)


def _both_can_hold(a: _Test, b: _Test) -> bool:
    if a.equal and b.equal:
        return (a.value ^ b.value) & a.mask & b.mask == 0
    if a.equal or b.equal:  # "equal" to the one value that the other excludes, or to more than that
        return (a.mask & b.mask, a.value) != (_ALL, b.value)
    return True


def _check_keys(entry: Mapping[str, object], field: str, allowed: set[str]) -> None:
    for key in entry:
        if key not in allowed:
            path = _path(field, key)
            raise BadConfig(f"{path} is not understood here; known are {_listed(allowed)}", field=path)


def _integer(
    entry: Mapping[str, object], key: str, field: str, *, least: int, most: int, default: int | None = None
) -> int:
    value = entry.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    path = _path(field, key)
    raise BadConfig(f"{path} must be a whole number from {least} to {most}", field=path)


def _list(entry: Mapping[str, object], key: str, field: str) -> list[object]:
    value = entry.get(key)
    if isinstance(value, list):
        return value
    path = _path(field, key)
    raise BadConfig(f"{path} must be a list", field=path)


def _strings(entry: Mapping[str, object], key: str, field: str) -> list[str]:
    values = _list(entry, key, field)
    if all(isinstance(value, str) for value in values):
        return cast("list[str]", values)
    path = _path(field, key)
    raise BadConfig(f"{path} must be a list of names", field=path)


def _object(value: object, field: str) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    raise BadConfig(f"{field} must be an object", field=field)


def _path(field: str, key: str) -> str:
    return f"{field}.{key}" if field else key


def _listed(words: Collection[str]) -> str:
    return ", ".join(sorted(words))


# --- the filter --------------------------------------------------------------------------------------------

_MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS

# struct seccomp_data; both architectures are little-endian, so an argument's low half comes first.
_NR, _ARCH, _ARGS = 0, 4, 16
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_NO_CALL = 0xFFFFFFFF  # syscall(-1), which is in no table

# Instructions, from <linux/bpf_common.h>: BPF_LD|W|ABS, ALU|AND|K, JMP|JA, JMP|JEQ|K, JMP|JGE|K, RET|K.
_LOAD, _AND, _JUMP, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06

# How far back a conditional jump may find its target: its offset has 8 bits, and the way to the other target
# of the same branch may still be put in between.
_REACH = 254

_Instruction = tuple[int, int, int, int]  # code, jt, jf, k
_Label = int


class _Backwards:
    """A program laid down from its end, so that every target is there, at a known distance, before its jump.

    A conditional jump reaches 255 instructions forward; past that it goes through a `_JUMP` of its own, or a
    copy of the return it wanted.
    """

    def __init__(self) -> None:
        self._reversed: list[_Instruction] = []
        self._returns: dict[int, _Label] = {}

    def answer(self, action: int) -> _Label:
        if action not in self._returns:
            self._returns[action] = self._put(_RETURN, action)
        return self._returns[action]

    def branch(self, condition: int, k: int, yes: _Label, no: _Label) -> _Label:
        yes, no = self._near(yes), self._near(no)
        here = len(self._reversed)
        return self._put(condition, k, here - yes - 1, here - no - 1)

    def load(self, offset: int, then: _Label, *, mask: int = 0xFFFFFFFF) -> _Label:
        if then != len(self._reversed) - 1:
            self._jump(then)
        if mask != 0xFFFFFFFF:
            self._put(_AND, mask)
        return self._put(_LOAD, offset)

    def finish(self) -> list[_Instruction]:
        return self._reversed[::-1]

    def _near(self, target: _Label) -> _Label:
        if len(self._reversed) - target <= _REACH:
            return target
        code, _, _, k = self._reversed[target]
        if code != _RETURN:
            return self._jump(target)
        if len(self._reversed) - self._returns[k] > _REACH:
            self._returns[k] = self._put(_RETURN, k)
        return self._returns[k]

    def _jump(self, target: _Label) -> _Label:
        return self._put(_JUMP, len(self._reversed) - target - 1)

    def _put(self, code: int, k: int, jt: int = 0, jf: int = 0) -> _Label:
        self._reversed.append((code, jt, jf, k))
        return len(self._reversed) - 1


def _assemble(default: int, decisions: Mapping[int, _Rules], arch: str) -> list[_Instruction]:
    program = _Backwards()
    spans = _spans(decisions)
    # Calls with the same rules share one block.
    blocks = {span: _decide(program, span, default) for _, span in spans}
    entry = _search(program, [(start, blocks[span]) for start, span in spans])
    if arch == "x86_64":
        # x32 calls have the audit arch of x86-64, and only this bit tells them apart.
        x32 = program.branch(_IF_EQUAL, _NO_CALL, program.answer(default), program.answer(_RET_KILL_PROCESS))
        entry = program.branch(_IF_AT_LEAST, _X32_BIT, x32, entry)
    entry = program.load(_NR, entry)
    entry = program.branch(_IF_EQUAL, _AUDIT_ARCH[arch], entry, program.answer(_RET_KILL_PROCESS))
    program.load(_ARCH, entry)
    return program.finish()


def _spans(decisions: Mapping[int, _Rules]) -> list[tuple[int, _Rules]]:
    """Neighbouring numbers with the same rules, by the first number; no rules means the default."""
    spans: list[tuple[int, _Rules]] = []
    for number in range(max(decisions, default=0) + 2):
        rules = decisions.get(number, ())
        if not spans or spans[-1][1] != rules:
            spans.append((number, rules))
    return spans


def _search(program: _Backwards, spans: Sequence[tuple[int, _Label]]) -> _Label:
    if len(spans) == 1:
        return spans[0][1]
    middle = len(spans) // 2
    upper = _search(program, spans[middle:])
    lower = _search(program, spans[:middle])
    return program.branch(_IF_AT_LEAST, spans[middle][0], upper, lower)


def _decide(program: _Backwards, rules: _Rules, default: int) -> _Label:
    otherwise = program.answer(default)
    for rule in reversed(rules):
        matched = program.answer(rule.action)
        for test in reversed(rule.tests):
            matched = _check(program, test, matched, otherwise)
        otherwise = matched
    return otherwise


def _check(program: _Backwards, test: _Test, yes: _Label, no: _Label) -> _Label:
    if not test.equal:
        yes, no = no, yes
    for half in (0, 1):
        mask, value = ((word >> 32 * half) & 0xFFFFFFFF for word in (test.mask, test.value))
        if mask:
            compared = program.branch(_IF_EQUAL, value, yes, no)
            yes = program.load(_ARGS + 8 * test.index + 4 * half, compared, mask=mask)
    return yes
