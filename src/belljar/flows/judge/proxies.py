"""The suite's end of the code under test: asks it, and stands in for what it holds.

Everything that comes from there is data. An object of the code's own is a `Proxy`, and an operation on it is
a question. Some are never asked, for a test that asks them tells the code what it expects, and code that
agrees with everything would pass:

    whether it equals plain data                   it does not
    whether it is more or less than plain data     a TypeError
    what it is together with plain data            only if that is an object of the code's own again, of which
                                                   nothing plain is made by abs(), float() and the like
"""

from __future__ import annotations

import builtins
import json
import os
import select
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import wire

_PLAIN_NAME = {"__module__": "__main__"}
"""So that a traceback shows a class by its name alone."""
_PYTHONS_OWN = frozenset({*vars(builtins), *sys.stdlib_module_names, "pytest"})
MAX_OUTPUT = 64 << 10
"""How much of what the code prints during one test is kept."""


class CodeGone(BaseException):
    """The code ended its process, took too long, or spoke nonsense. No test can catch it for an Exception."""


class TookTooLong(CodeGone):
    pass


class CodeError(Exception):
    """The code raised something that is no built-in exception."""


class Code:
    """The candidate's process."""

    def __init__(self, read_fd: int, write_fd: int, out_fd: int, err_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._printed = {out_fd: "stdout", err_fd: "stderr"}
        self._kept = 0
        self._incoming = bytearray()
        self._exports: list[Any] = []
        self._exceptions: dict[int, type[BaseException]] = {}
        self._deadline = time.monotonic() + 3600
        self.gone: CodeGone | None = None
        for fd in (read_fd, write_fd, out_fd, err_fd):
            os.set_blocking(fd, False)

    def begin(self, timeout_s: float) -> None:
        """A new test: so long may it take."""
        self._deadline = time.monotonic() + timeout_s
        self._kept = 0
        self._exports.clear()

    # Questions

    def ask(self, *question: Any) -> Any:
        if self.gone is not None:
            raise self.gone
        try:
            message = wire.frame(question)
        except (RecursionError, TypeError, ValueError) as error:
            raise TypeError(f"cannot be passed to the code under test: {error}") from None
        self._write(message)
        while True:
            tag, *rest = self._read()
            if tag == "ok" and len(rest) == 2:
                return rest
            if tag == "raised" and len(rest) == 1:
                raise self._exception(rest[0])
            if tag != "ask":
                raise self._nonsense(f"unknown message {tag!r}")
            self._write(wire.frame(self._callback(*rest)))

    def operation(self, name: str, *args: Any) -> Any:
        return self.decoded(self.ask("operation", name, [*map(self.encoded, args)])[0])

    def call(self, target: Proxy, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = [*args, *named.values()]
        encoded = [*map(self.encoded, given)]
        keywords = dict(zip(named, encoded[len(args) :], strict=True))
        result, changed = self.ask("call", self.encoded(target), encoded[: len(args)], keywords)
        try:
            for place, value in changed:
                _update(given[place], self.decoded(value))
        except (LookupError, TypeError, ValueError) as fault:
            raise self._nonsense(f"no changes: {fault}") from None
        return self.decoded(result)

    def module(self, name: str) -> types.ModuleType:
        """What `import` gives. `dir` of it is all that the code has; `import *` takes nothing of it that
        would stand for something of Python's own in a test."""
        module = types.ModuleType(name)
        names = [str(one) for one in self._checked_list(self.ask("names")[0])]
        vars(module)["__all__"] = [one for one in names if one not in _PYTHONS_OWN]
        vars(module)["__dir__"] = lambda: names
        vars(module)["__getattr__"] = lambda wanted: self.decoded(self.ask("global", wanted)[0])
        return module

    # Values

    def encoded(self, value: Any) -> Any:
        return wire.encode(value, self._foreign)

    def _foreign(self, value: Any) -> list[Any]:
        if isinstance(value, Proxy):
            return ["held", _handle(value)]
        if isinstance(value, type) and issubclass(value, BaseException):
            for number, kind in self._exceptions.items():
                if kind is value:
                    return ["held", number]
        if isinstance(value, (types.FunctionType, types.MethodType)):
            module = sys.modules.get(value.__module__ or "")
            if getattr(module, "__file__", None) is None:  # of the tests
                self._exports.append(value)
                return ["function", len(self._exports) - 1]
        if isinstance(value, Iterator):
            self._exports.append(value)
            return ["iterator", len(self._exports) - 1]
        module_name, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(module_name, str) and isinstance(name, str) and callable(value):
            return ["named in", module_name, name]
        raise TypeError(f"a {type(value).__name__} cannot be passed to the code under test")

    def decoded(self, value: Any) -> Any:
        try:
            return wire.decode(value, self._held)
        except (wire.Fault, LookupError, TypeError, ValueError) as fault:
            raise self._nonsense(str(fault)) from None

    def _held(self, value: list[Any]) -> Any:
        tag, number, name, *rest = value
        if type(number) is not int or type(name) is not str:
            raise wire.Fault("no handle")
        if tag == "held":
            return Proxy(self, number)
        if tag == "exception":
            return self._exception_class(number, name, rest[0])
        raise wire.Fault(f"unknown value {tag!r}")

    def _exception_class(self, number: int, name: str, bases: Any) -> type[BaseException]:
        """A class of ours for a class of the code's: it is of the same built-in ones."""
        if wire.EXCEPTIONS.get(name) is not None and bases and bases[0] == name:
            return wire.EXCEPTIONS[name]
        if number not in self._exceptions:
            known = [wire.EXCEPTIONS[base] for base in bases if base in wire.EXCEPTIONS]
            nearest = tuple(
                kind for kind in known if not any(issubclass(o, kind) and o is not kind for o in known)
            )
            try:
                made: type[BaseException] = type(name, nearest or (CodeError,), _PLAIN_NAME)
            except TypeError:  # classes that do not go together
                made = type(name, (CodeError,), _PLAIN_NAME)
            self._exceptions[number] = made
        return self._exceptions[number]

    def _exception(self, told: Any) -> BaseException:
        try:
            number, name, bases, args, plain, place = told
            kind = self._exception_class(number, str(name), bases)
            values = [self.decoded(arg) for arg in args]
            attributes = {str(key): self.decoded(value) for key, value in plain.items()}
        except (AttributeError, TypeError, ValueError) as fault:
            return self._nonsense(f"no exception: {fault}")
        try:
            error = kind(*values)
            vars(error).update(attributes)
        except Exception:
            error = CodeError(f"{name}: {values!r}"[:500])
        vars(error)["belljar_place"] = str(place)[:2000]
        return error

    def _callback(self, what: Any, number: Any, args: Any, named: Any) -> list[Any]:
        """A function or an iterator that the test gave away: it may be called, and nothing else."""
        try:
            target = self._exports[number]
            values = [self.decoded(arg) for arg in args]
            keywords = {str(key): self.decoded(value) for key, value in named.items()}
            result = target(*values, **keywords) if what == "call" else next(target)
            return ["answer", self.encoded(result)]
        except Exception as error:
            name = type(error).__name__
            known = getattr(builtins, name, None) is type(error)
            return ["raise", name if known else "RuntimeError", [str(error)[:1000]]]

    # The wire

    def _read(self) -> list[Any]:
        while len(self._incoming) < wire.HEAD.size:
            self._wait()
        (size,) = wire.HEAD.unpack(self._incoming[: wire.HEAD.size])
        if size > wire.MAX_FRAME:
            raise self._nonsense("an answer that is too large")
        while len(self._incoming) < wire.HEAD.size + size:
            self._wait()
        body = bytes(self._incoming[wire.HEAD.size : wire.HEAD.size + size])
        del self._incoming[: wire.HEAD.size + size]
        self._pump()
        try:
            message = json.loads(body)
        except (RecursionError, ValueError):
            raise self._nonsense("an answer that is not JSON") from None
        return self._checked_list(message, at_least=1)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._wait(writing=True)
            try:
                view = view[os.write(self._write_fd, view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._end(CodeGone("the code ended its process")) from None

    def _wait(self, writing: bool = False) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._end(TookTooLong("the code did not answer in time"))
        wanted = [self._read_fd, *self._printed]
        ready, writable, _ = select.select(wanted, [self._write_fd] if writing else [], [], left)
        self._pump()
        if self._read_fd in ready:
            try:
                chunk = os.read(self._read_fd, 1 << 20)
            except BlockingIOError:
                return
            if not chunk:
                raise self._end(CodeGone("the code ended its process"))
            self._incoming += chunk
            if len(self._incoming) > 2 * wire.MAX_FRAME:
                raise self._nonsense("more than it was asked for")

    def _pump(self) -> None:
        """What the code printed appears here as if a test had printed it."""
        for fd, name in [*self._printed.items()]:
            while True:
                try:
                    chunk = os.read(fd, 1 << 16)
                except BlockingIOError:
                    break
                if not chunk:
                    del self._printed[fd]
                    break
                room = max(MAX_OUTPUT - self._kept, 0)
                self._kept += len(chunk)
                if room:
                    getattr(sys, name).write(chunk[:room].decode("utf-8", "replace"))
                if time.monotonic() > self._deadline:
                    return  # it prints for ever

    def _checked_list(self, value: Any, at_least: int = 0) -> list[Any]:
        if not isinstance(value, list) or len(value) < at_least:
            raise self._nonsense("not a list")
        return value

    def _nonsense(self, what: str) -> CodeGone:
        return self._end(CodeGone(f"the code's process answered nonsense: {what}"))

    def _end(self, why: CodeGone) -> CodeGone:
        if self.gone is None:
            self.gone = why
        return self.gone


class Proxy:
    """An object of the code's own."""

    __slots__ = ("__weakref__", "_belljar")

    def __init__(self, code: Code, number: int, combined: bool = False) -> None:
        """`combined`: it came of an operation with plain data."""
        object.__setattr__(self, "_belljar", (code, number, combined))

    def __call__(self, *args: Any, **named: Any) -> Any:
        return _code(self).call(self, args, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__doc__"):
            raise AttributeError(name)
        return _code(self).operation("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _code(self).operation("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _code(self).operation("delattr", self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and _code(self).operation("eq", self, other) is True

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, Proxy) or _code(self).operation("ne", self, other) is True

    def __contains__(self, item: object) -> bool:
        return _code(self).operation("contains", self, item) is True

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Proxy) and _code(self).operation("isinstance", instance, self) is True

    def __subclasscheck__(self, subclass: object) -> bool:
        return isinstance(subclass, Proxy) and _code(self).operation("issubclass", subclass, self) is True

    def __exit__(self, *_: object) -> None:
        _code(self).operation("exit", self)


def _code(proxy: Proxy) -> Code:
    code: Code = object.__getattribute__(proxy, "_belljar")[0]
    return code


def _handle(proxy: Proxy) -> int:
    number: int = object.__getattribute__(proxy, "_belljar")[1]
    return number


def _is_combined(proxy: Proxy) -> bool:
    return bool(object.__getattribute__(proxy, "_belljar")[2])


def _asking(name: str) -> Callable[..., Any]:
    return lambda self, *args: _code(self).operation(name, self, *args)


def _making(name: str) -> Callable[..., Any]:
    def made(self: Proxy, *args: Any) -> Any:
        result = _code(self).operation(name, self, *args)
        if _is_combined(self) and not isinstance(result, Proxy):
            raise TypeError(_NOT_COMPARABLE)
        return result

    return made


def _ordering(name: str) -> Callable[..., Any]:
    def ordered(self: Proxy, other: object) -> bool:
        if not isinstance(other, Proxy):
            raise TypeError(_NOT_COMPARABLE)
        return _code(self).operation(name, self, other) is True

    return ordered


def _combining(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    def combined(self: Proxy, other: Any) -> Any:
        result = _code(self).operation(name, *((other, self) if reflected else (self, other)))
        if isinstance(other, Proxy):
            return result
        if not isinstance(result, Proxy):
            raise TypeError(_NOT_COMPARABLE)
        return Proxy(_code(self), _handle(result), combined=True)

    return combined


_NOT_COMPARABLE = (
    "an object of the code under test cannot be measured against plain data: the code would be told what is "
    "expected; compare a part of it, or use == with plain data"
)
_OPERATORS: tuple[tuple[Callable[[str], Callable[..., Any]], str], ...] = (
    (_asking, "bool delitem enter format getitem hash iter len next repr setitem str"),
    (_making, "abs float int invert neg pos round"),
    (_ordering, "ge gt le lt"),
    (_combining, "add and_ floordiv lshift matmul mod mul or_ pow rshift sub truediv xor"),
)
for _made, _names in _OPERATORS:
    for _name in _names.split():
        _plain = _name.rstrip("_")
        setattr(Proxy, f"__{_plain}__", _made(_name))
        if _made is _combining:
            setattr(Proxy, f"__r{_plain}__", _combining(_name, reflected=True))


def _update(mine: Any, theirs: Any) -> None:
    """An argument that the code changed in place changes here too, if it is still of its type."""
    if type(mine) is type(theirs):
        if isinstance(mine, (list, bytearray)):
            mine[:] = theirs
        elif isinstance(mine, (dict, set)):
            mine.clear()
            mine.update(theirs)
