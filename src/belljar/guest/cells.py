"""A Python that is handed code piece by piece and keeps what each piece made: a session's context.

It is the program's own process: what it says of a cell is the program's word, like its output. Cells come in
on one descriptor, what became of them goes out on another:

    in    OPEN  {"code", "name"}
    out   NOTE  {"result": {mime type: data}}   the value of the last expression, `display(…)`, figures
          EOF   the cell is done;  END  it is done and raised

Standard library only; what most contexts never need is imported where it is used.
"""

from __future__ import annotations

import builtins
import os
import sys
import types

from belljar.guest import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

MAX_RESULT = 2 << 20
"""Bytes of a value in all its forms; what does not fit is left out."""
MAX_ROWS = 200

_FORMS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)
TABLE = "application/vnd.belljar.table+json"


def serve(cells_fd: int, results_fd: int) -> NoReturn:
    """Until nobody hands over any more."""
    for fd in (cells_fd, results_fd):
        os.set_inheritable(fd, False)
    context = _Context(results_fd)
    decoder = protocol.Decoder()
    while data := os.read(cells_fd, 1 << 18):
        for frame in decoder.feed(data):
            cell = frame.request()
            try:
                done = context.run(cell["code"], cell["name"])
            except KeyboardInterrupt:  # at its very end
                done = False
            os.write(results_fd, protocol.encode(protocol.EOF if done else protocol.END, 0))
    os._exit(0)


class _Context:
    def __init__(self, results_fd: int) -> None:
        self._results_fd = results_fd
        self._on_interrupt = signal.signal(signal.SIGINT, _came_too_late)
        """What a cell does then, which is the program's to change."""
        self._loop: Any = None
        main = types.ModuleType("__main__")
        self._names = vars(main)
        self._names.update(__builtins__=builtins, __annotations__={}, display=self._display)
        sys.modules["__main__"] = main
        sys.argv = [""]
        sys.path.insert(0, "")

    def run(self, code: str, name: str) -> bool:
        """Whether it went through without an exception that nothing caught."""
        import traceback

        try:
            signal.signal(signal.SIGINT, self._on_interrupt)
            value = self._execute(code, name)
            if value is not None:
                self._names["_"] = value
                self._display(value)
            self._show_figures()
            return True
        except SystemExit as end:
            return end.code in (None, 0)
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != name:
                trace = trace.tb_next  # our own frames are not the program's business
            traceback.print_exception(type(error), error, trace)
            return False
        finally:
            self._on_interrupt = signal.signal(signal.SIGINT, _came_too_late) or self._on_interrupt
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (AttributeError, OSError, ValueError):
                    pass  # replaced or closed by the program

    def _execute(self, code: str, name: str) -> object:
        """The value of the last expression, if it ends in one. `await` works at the top."""
        import ast
        import linecache

        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        body = ast.parse(code, name)
        last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
        self._evaluate(compile(body, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if not isinstance(last, ast.Expr):
            return None
        expression = ast.Expression(last.value)
        return self._evaluate(compile(expression, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))

    def _evaluate(self, code: types.CodeType) -> object:
        value = eval(code, self._names)
        if not code.co_flags & 0x80:  # CO_COROUTINE
            return value
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(value)

    def _display(self, *values: object) -> None:
        """In all the forms that the value knows of itself."""
        for value in values:
            self._tell(_forms(value))

    def _show_figures(self) -> None:
        plots: Any = sys.modules.get("matplotlib.pyplot")
        if plots is None:
            return
        import io

        for number in plots.get_fignums():
            picture = io.BytesIO()
            plots.figure(number).savefig(picture, format="png", bbox_inches="tight")
            self._tell(_bounded({"image/png": picture.getvalue()}))
        plots.close("all")

    def _tell(self, forms: dict[str, object]) -> None:
        import json

        sys.stdout.flush()  # what was printed before it comes before it
        frame = memoryview(protocol.encode(protocol.NOTE, 0, json.dumps({"result": forms}).encode()))
        while frame:
            frame = frame[os.write(self._results_fd, frame) :]


def _came_too_late(*_: object) -> None:
    """An interrupt between cells is nobody's. Not ignored by the kernel: that would go on in every child."""


def _forms(value: Any) -> dict[str, object]:
    forms: dict[str, object] = {"text/plain": repr(value)}
    for method, mime in _FORMS:
        try:
            form = getattr(type(value), method, None)
            data = None if form is None else form(value)
        except Exception:
            continue  # a value that cannot show itself in one form may in another
        if data is not None:
            forms[mime] = data[0] if isinstance(data, tuple) else data
    table = _table(value)
    if table is not None:
        forms[TABLE] = table
    return _bounded(forms)


def _table(value: Any) -> dict[str, object] | None:
    """The first rows of a data frame, as plain data."""
    if type(value).__module__.split(".")[0] != "pandas" or type(value).__name__ not in (
        "DataFrame",
        "Series",
    ):
        return None
    import json

    try:
        frame = value.to_frame() if type(value).__name__ == "Series" else value
        plain = json.loads(frame.head(MAX_ROWS).to_json(orient="split", date_format="iso"))
    except Exception:
        return None
    return {**plain, "total_rows": len(frame)}


def _bounded(forms: dict[str, object]) -> dict[str, object]:
    """Bytes as base64 text; a form that is too large or no JSON is left out."""
    import base64
    import json

    kept: dict[str, object] = {}
    left = MAX_RESULT
    for mime, data in forms.items():
        data = base64.b64encode(data).decode() if isinstance(data, bytes) else data
        try:
            size = len(json.dumps(data, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            continue
        if mime == "text/plain" and size > left // 8:
            data = str(data)[: left // 64] + "…"
            size = len(json.dumps(data))
        if size <= left:
            kept[mime] = data
            left -= size
    return kept
