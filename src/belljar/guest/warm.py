"""Run a script as `__main__` in this already warm interpreter, as `python3 script.py` would.

Called in a forked child of the guest. What a program can see differs from a new interpreter only
in what a fork shares: the hash seed, the address layout, modules that are already imported (they
still have to be imported to be named) and `/proc/self/cmdline`. `docs/compatibility.md` lists it for
those who write programs. Standard library only.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import io
import os
import sys
import time
import types
from _frozen_importlib_external import SourceFileLoader
from _weakref import ref
from itertools import takewhile

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import Any, NoReturn
else:
    import _signal as signal

_FILE_INPUT = 257  # Py_file_input

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fopen.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
_libc.fopen.restype = ctypes.c_void_p
_python = ctypes.pythonapi
_python.PyRun_FileExFlags.argtypes = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.py_object,
    ctypes.py_object,
    ctypes.c_int,
    ctypes.c_void_p,
)
_python.PyRun_FileExFlags.restype = ctypes.py_object


def prepare() -> None:
    """What can be done before the script is known; `bundle` has already removed all traces of us."""
    _open_standard_streams(by_line=True)
    if "numpy.random" in sys.modules:  # the standard library's generator reseeds itself after a fork
        sys.modules["numpy.random"].seed()
    gc.enable()


def run_as_main(script: str, arguments: Sequence[str], *, by_line: int) -> NoReturn:
    """Run the script and end this process with its exit status.

    So many bytes of its stdout are written line by line, and what follows in blocks.
    """
    time.tzset()  # TZ may be among the variables it was given
    if by_line:
        buffer: Any = sys.stdout.buffer
        buffer.by_line = by_line
    else:
        _open_standard_streams(by_line=False)
    sys.argv = [script, *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path.insert(0, os.path.dirname(script))
    last_before = next(reversed(sys.modules))
    sys.modules["__main__"] = _fresh_main(script)
    error = _execute(script)
    status = 0 if error is None else _report(error)
    interrupted = isinstance(error, KeyboardInterrupt)
    del error
    status = _finish(status, last_before)
    if interrupted:  # a shell must see that the program died of SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _fresh_main(script: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    vars(main).update(
        __file__=script,
        __builtins__=builtins,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", script),
        __annotations__={},
    )
    return main


class _Stdout(io.BufferedWriter):
    """Ends the writing by lines when enough was written so: what nobody keeps need not be there at once."""

    by_line = 1 << 62

    def write(self, data: Any) -> int:
        written = io.BufferedWriter.write(self, data)
        if self.by_line > 0:
            self.by_line -= written
            if self.by_line <= 0:
                text: Any = sys.__stdout__
                try:
                    if text.buffer is self:
                        text.reconfigure(line_buffering=False)
                except (AttributeError, ValueError):
                    pass  # replaced or taken apart by the program
        return written


def _open_standard_streams(*, by_line: bool) -> None:
    """New objects on descriptors 0, 1 and 2 with the encoding of a new interpreter.

    `by_line`: as on a terminal. To be without any buffer, as PYTHONUNBUFFERED has it, is to write each line
    in two pieces, and to lose what a write that is interrupted leaves over.
    """

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
    text("stdout", 1, "w", _Stdout if by_line else io.BufferedWriter, "surrogateescape", by_line)
    text("stderr", 2, "w", io.BufferedWriter, "backslashreplace", True)


def _execute(script: str) -> BaseException | None:
    """Run it; what it raised, with a traceback that starts in the program.

    By the interpreter's own reader of source files, not compile(): what it says of a file that is no
    Python, or in an unknown encoding, differs.
    """
    names = vars(sys.modules["__main__"])
    file = _libc.fopen(os.fsencode(script), b"rb")
    if not file:
        return SystemExit(f"{sys.executable}: can't open file {script!r}: {os.strerror(ctypes.get_errno())}")
    try:
        _python.PyRun_FileExFlags(file, os.fsencode(script), _FILE_INPUT, names, names, 1, None)
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return error
    return None


def _report(error: BaseException) -> int:
    """What the interpreter does with an exception that nothing caught; the exit status it makes."""
    if isinstance(error, SystemExit):
        return _exit_status(error.code)
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _print_to_stderr("sys.excepthook is missing\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
        return 1
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as exit_request:
        return _exit_status(exit_request.code)
    except BaseException as failure:
        _print_to_stderr("Error in sys.excepthook:\n")
        trace = failure.__traceback__ and failure.__traceback__.tb_next
        sys.__excepthook__(type(failure), failure.with_traceback(trace), trace)
        _print_to_stderr("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) if -(2**63) <= code < 2**63 else -1
    try:
        text = str(code)
    except BaseException:
        text = ""
    _print_to_stderr(text + "\n")
    return 1


def _print_to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
    except (OSError, ValueError, AttributeError):
        pass  # closed or replaced by the program


def _finish(status: int, last_before: str) -> int:
    """What the interpreter does at its end: join threads, atexit, flush, drop what the program made."""
    threading = sys.modules.get("threading")  # not ours: it would do work in every fork
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    flushed = _flush()
    if threading is None or threading.active_count() == 1:  # a daemon thread would see its globals vanish
        _drop_modules(_imported_since(last_before))
        flushed = flushed and _flush()
    return status if flushed else 120


def _imported_since(last_before: str) -> list[str]:
    """What the program imported. Sought from the end: to look at a name is to copy the page it is on."""
    if last_before not in sys.modules:
        return []
    return list(takewhile(lambda name: name != last_before, reversed(sys.modules)))[::-1]


def _drop_modules(imported: list[str]) -> None:
    """In the interpreter's order, so that `__del__` runs and sees what it would see: first nobody knows the
    modules any more, then what only they held is collected, and only what is left loses its names."""
    left = []
    for name in ["__main__", *imported]:
        module = sys.modules.pop(name, None)
        if isinstance(module, types.ModuleType):
            left.append(ref(module))
        del module
    gc.collect()
    for reference in left:
        module = reference()
        if module is not None:
            _clear(vars(module))


def _clear(names: dict[str, Any]) -> None:
    for name in [name for name in names if name[:1] == "_" and name[:2] != "__"]:
        names[name] = None
    for name in [name for name in names if name != "__builtins__"]:
        names[name] = None


def _flush() -> bool:
    """Both streams; false when that failed. Of stdout it is said, of stderr it cannot be."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException as error:
            flushed = False
            if stream is sys.stdout:
                _print_to_stderr(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
    return flushed
