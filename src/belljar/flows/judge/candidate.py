"""The code under test, in a process of its own: loads it, and answers what the suite asks of it."""

from __future__ import annotations

import builtins
import importlib
import itertools
import json
import operator
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import wire

OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in (
        "abs add and_ contains delitem eq floordiv ge getitem gt invert le lshift lt matmul mod mul ne neg "
        "or_ pos pow rshift setitem sub truediv xor"
    ).split()
}
OPERATIONS |= {
    one.__name__: one
    for one in (
        bool,
        delattr,
        float,
        format,
        hash,
        int,
        isinstance,
        issubclass,
        iter,
        len,
        next,
        repr,
        round,
        str,
    )
}
OPERATIONS |= {
    "getattr": getattr,
    "setattr": setattr,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value: type(value).__exit__(value, None, None, None),
}
_MUTABLE = (list, dict, set, bytearray)


class Candidate:
    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._held: dict[int, Any] = {}
        self._ids: dict[int, int] = {}
        self._count = itertools.count(1)
        self._module = types.ModuleType("solution")

    def serve(self) -> NoReturn:
        while True:
            self._answer(self._receive())

    def _answer(self, question: list[Any]) -> None:
        try:
            answer = ["ok", *self._done(*question)]
        except BaseException as error:
            answer = ["raised", self._exception(error)]
        self._send(answer)

    def _done(self, what: str, *details: Any) -> tuple[Any, Any]:
        if what == "load":
            self._load(*details)
            return None, []
        if what == "names":
            listed = getattr(self._module, "__all__", None)
            names = listed or [name for name in vars(self._module) if not name.startswith("_")]
            return [str(name) for name in names], []
        if what == "global":
            return self._encoded(getattr(self._module, details[0])), []
        if what == "operation":
            name, args = details
            return self._encoded(OPERATIONS[name](*map(self._decoded, args))), []
        target, args, named = details
        given = [*args, *named.values()]
        values = [self._decoded(one) for one in given]
        keywords = dict(zip(named, values[len(args) :], strict=True))
        result = self._decoded(target)(*values[: len(args)], **keywords)
        changed = [
            [place, new]
            for place, (value, old) in enumerate(zip(values, given, strict=True))
            if isinstance(value, _MUTABLE) and (new := self._encoded(value)) != old
        ]
        return self._encoded(result), changed

    def _load(self, name: str, code: str) -> None:
        self._module = types.ModuleType(name)
        self._module.__file__ = f"{name}.py"
        sys.modules[name] = self._module
        exec(compile(code, f"{name}.py", "exec"), vars(self._module))

    # Values

    def _encoded(self, value: Any) -> Any:
        return wire.encode(value, self._foreign)

    def _foreign(self, value: Any) -> list[Any]:
        number = self._ids.get(id(value))
        if number is None:
            number = self._ids[id(value)] = next(self._count)
            self._held[number] = value  # so that its id stays its own
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["exception", number, value.__name__, _bases(value)]
        return ["held", number, type(value).__name__]

    def _decoded(self, value: Any) -> Any:
        return wire.decode(value, self._known)

    def _known(self, value: list[Any]) -> Any:
        tag, *rest = value
        if tag == "held":
            return self._held[rest[0]]
        if tag == "named in":  # something of the standard library
            found: Any = importlib.import_module(rest[0])
            for name in rest[1].split("."):
                found = getattr(found, name)
            return found
        if tag == "function":
            return lambda *args, **named: self._ask("call", rest[0], args, named)
        if tag == "iterator":
            return iter(_Iterator(lambda: self._ask("next", rest[0], (), {})))
        raise wire.Fault(f"unknown value {tag!r}")

    def _exception(self, error: BaseException) -> list[Any]:
        kind = type(error)
        plain = {
            name: encoded
            for name, value in vars(error).items()
            if (encoded := wire.encode(value, lambda value: ["?"])) != ["?"] and not name.startswith("_")
        }
        args = [wire.encode(arg, lambda value: ["str", _shown(value)]) for arg in error.args]
        place = "".join(traceback.format_exception(error)[-3:])[-2000:]
        return [*self._foreign(kind)[1:], args, plain, place]

    # The wire

    def _ask(self, what: str, number: int, args: Any, named: Any) -> Any:
        self._send(
            [
                "ask",
                what,
                number,
                [*map(self._encoded, args)],
                {k: self._encoded(v) for k, v in named.items()},
            ]
        )
        while True:
            answer = self._receive()
            if answer[0] == "answer":
                return self._decoded(answer[1])
            if answer[0] == "raise":
                raise getattr(builtins, answer[1], RuntimeError)(*map(self._decoded, answer[2]))
            self._answer(answer)  # the test's function asks something of us

    def _send(self, message: list[Any]) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass  # the code closed or replaced it
        try:
            data = memoryview(wire.frame(message))
        except (RecursionError, TypeError, ValueError) as error:
            failed = ["ValueError", ["ValueError"], [f"the result cannot be passed on: {error}"], {}, ""]
            data = memoryview(wire.frame(["raised", [0, *failed]]))
        while data:
            data = data[os.write(self._write_fd, data) :]

    def _receive(self) -> list[Any]:
        (size,) = wire.HEAD.unpack(self._exactly(wire.HEAD.size))
        message: list[Any] = json.loads(self._exactly(size))
        return message

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self._read_fd, min(size - len(data), 1 << 20))
            if not chunk:
                os._exit(0)
            data += chunk
        return bytes(data)


class _Iterator:
    def __init__(self, step: Callable[[], Any]) -> None:
        self._step = step

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        return self._step()


def _bases(kind: type) -> list[str]:
    """Names of the built-in exceptions that it is one of, nearest first."""
    return [one.__name__ for one in kind.__mro__ if wire.EXCEPTIONS.get(one.__name__) is one]


def _shown(value: object) -> str:
    try:
        return repr(value)[:500]
    except Exception:
        return f"<{type(value).__name__}>"
