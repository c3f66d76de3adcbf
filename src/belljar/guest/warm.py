"""Run a script as `__main__` in this already warm interpreter, as `python3 script.py` would.

Called in a forked child of the guest. What a program can see differs from a new interpreter only
in what a fork shares: the hash seed, the address layout, modules that are already imported (they
still have to be imported to be named) and `/proc/self/cmdline`. Standard library only.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import os
import signal
import sys
import threading
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn


def prepare() -> None:
    """What can be done before the script is known: forget us, open the standard streams."""
    for name in [name for name in sys.modules if name.split(".")[0] == "belljar"]:
        del sys.modules[name]
    _open_standard_streams()
    if "numpy.random" in sys.modules:  # the standard library's generator reseeds itself after a fork
        sys.modules["numpy.random"].seed()
    gc.enable()


def run_as_main(script: str, arguments: Sequence[str]) -> NoReturn:
    """Run the script and end this process with its exit status."""
    main = types.ModuleType("__main__")
    vars(main).update(
        __file__=script,
        __builtins__=builtins,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", script),
        __annotations__={},
    )
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path.insert(0, os.path.dirname(script))
    imported_before = frozenset(sys.modules)
    status = _execute(script, main)
    interrupted = status is None
    status = _finish(main, 130 if status is None else status, imported_before)
    if interrupted:  # a shell must see that the program died of SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _open_standard_streams() -> None:
    """New objects on descriptors 0, 1 and 2 with the encoding and buffering of a new interpreter."""

    def text(name: str, number: int, raw_mode: str, buffer_type: Any, errors: str, line: bool) -> None:
        raw: Any = io.FileIO(number, raw_mode, closefd=False)
        raw.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(
            buffer_type(raw),
            encoding="utf-8",
            errors=errors,
            newline=None if raw_mode == "r" else "\n",
            line_buffering=line,
        )
        stream.mode = raw_mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)

    # C.UTF-8 is a coerced locale: PEP 538 makes its streams lenient.
    text("stdin", 0, "r", io.BufferedReader, "surrogateescape", False)
    text("stdout", 1, "w", io.BufferedWriter, "surrogateescape", False)
    text("stderr", 2, "w", io.BufferedWriter, "backslashreplace", True)


def _execute(script: str, main: types.ModuleType) -> int | None:
    """Run it; the exit status, or None when it was interrupted."""
    try:
        with open(script, "rb") as file:
            source = file.read()
        exec(compile(source, script, "exec", dont_inherit=True), vars(main))
    except SystemExit as exit_request:
        return _exit_status(exit_request.code)
    except BaseException as error:
        # Without this frame: the program's traceback starts in the program.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        error.__traceback__ = trace
        _report(error, trace)
        return None if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    _print_to_stderr(str(code))
    return 1


def _report(error: BaseException, trace: types.TracebackType | None) -> None:
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as exit_request:
        os._exit(_exit_status(exit_request.code) & 0xFF)
    except BaseException as failure:
        _print_to_stderr("Error in sys.excepthook:")
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        _print_to_stderr("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, trace)


def _print_to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
    except (OSError, ValueError, AttributeError):
        pass  # closed or replaced by the program


def _finish(main: types.ModuleType, status: int, imported_before: frozenset[str]) -> int:
    """What the interpreter does at its end: join threads, atexit, flush, drop what the program made."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    status = _flush(status)
    if threading.active_count() == 1:  # a daemon thread would see its globals vanish
        made = [module for name, module in list(sys.modules.items()) if name not in imported_before]
        for module in [main, *made]:
            _clear(module)
        gc.collect()
        status = _flush(status)
    return status


def _clear(module: types.ModuleType | None) -> None:
    """Drop a module's names in the interpreter's order, so that `__del__` runs: private ones first."""
    names = getattr(module, "__dict__", None)
    if names is None:
        return
    for name in [name for name in names if name[:1] == "_" and name[:2] != "__"]:
        names[name] = None
    for name in [name for name in names if name != "__builtins__"]:
        names[name] = None


def _flush(status: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException as error:
            if stream is sys.stdout:
                _print_to_stderr(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}")
                status = 120
    return status
