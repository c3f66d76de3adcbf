"""Installs packages in a jar that is there for nothing else: sent there as text, with pip in a zip beside it.

Only wheels are taken, and a wheel is unpacked, not run: nothing of a package is executed here. What is
compiled is told to be used as it is, because the files get other dates when they are handed to a run.
Standard library only.
"""

from __future__ import annotations

import compileall
import json
import py_compile
import re
import runpy
import sys
from typing import Any

INPUTS = "/workspace/inputs"
PIP = "pip.zip"
WHEELS = "wheels"
FOLDER = "packages"
REPORT = "report.json"
INDEX = "the index does not answer: "
"""How a line begins that says so."""
_LEFT = "/workspace/artifacts"


def main() -> None:
    """Ends with pip's own exit status, if that is not 0."""
    order = json.load(sys.stdin)
    sys.path.insert(0, f"{INPUTS}/{PIP}")
    sys.argv = ["pip", *_arguments(order)]
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            _look_for_index(order)
            raise
    as_it_is = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(f"{_LEFT}/{FOLDER}", quiet=2, invalidation_mode=as_it_is)


def _arguments(order: dict[str, Any]) -> list[str]:
    given = ["install", "--isolated", "--no-input", "--no-color", "--no-cache-dir", "--no-compile"]
    given += ["--disable-pip-version-check", "--no-warn-conflicts", "--progress-bar", "off"]
    given += ["--only-binary", ":all:", "--target", f"{_LEFT}/{FOLDER}", "--report", f"{_LEFT}/{REPORT}"]
    if order["index_url"] is None:
        given += ["--no-index", "--find-links", f"{INPUTS}/{WHEELS}"]
    else:
        given += ["--index-url", order["index_url"], "--cert", order["certificates"]]
        given += ["--retries", "2", "--timeout", "15"]
        if order["plain_host"]:
            given += ["--trusted-host", order["plain_host"]]
    return [*given, "--", *order["requirements"]]


def _look_for_index(order: dict[str, Any]) -> None:
    """To pip one that does not answer is one that has nothing. Says so where that is the reason."""
    if order["index_url"] is None:
        return
    import urllib.error
    import urllib.request

    name = re.split("[^a-z0-9-]", order["requirements"][0])[0]
    try:
        urllib.request.urlopen(f"{order['index_url'].rstrip('/')}/{name}/", timeout=15).close()
    except urllib.error.HTTPError as error:
        if error.code != 404:
            sys.stderr.write(f"{INDEX}{error.code} {error.reason}\n")
    except OSError as error:
        sys.stderr.write(f"{INDEX}{error}\n")


if __name__ == "__main__":
    main()
