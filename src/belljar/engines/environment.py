"""What every program finds around it, on every engine: its variables, and how a TypeScript file is run."""

from __future__ import annotations

__all__ = ["TYPESCRIPT", "WARM", "environment"]

TYPESCRIPT = """\
if command -v esbuild >/dev/null; then
    script=/tmp/$(basename "$0" .ts).mjs
    esbuild "$0" "--outfile=$script" \\
        --log-level=error --bundle --platform=node --format=esm --sourcemap=inline || exit
    exec node --enable-source-maps "$script" "$@"
elif node --experimental-strip-types --no-warnings -e 0 2>/dev/null; then
    exec node --experimental-strip-types --no-warnings "$0" "$@"
fi
echo 'belljar: no TypeScript here: it takes esbuild, or node 22.6 or newer' >&2
exit 127
"""
"""Run by `sh -c` with the script as $0. Which way works is seen inside, where it has to work."""

_COMMON = {
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",  # caches would come back as artifacts
    "PYTHONUNBUFFERED": "1",  # what it printed is seen at once, and not lost with a program that is killed
}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Told the CPU limit, numeric libraries do not start a thread per core of the host."""

WARM = {**_COMMON, **dict.fromkeys(_THREADS, "1")}
"""Of an interpreter that programs are forked from: it must stay single-threaded."""


def environment(cpu_cores: float) -> dict[str, str]:
    return {
        **_COMMON,
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        **dict.fromkeys(_THREADS, str(max(1, round(cpu_cores)))),
    }
