"""Our modules as one Python program that any interpreter can run, also one we know nothing of.

No image and no tree has to contain belljar: the text goes down the wire at start, so its version
always matches the host's.
"""

from __future__ import annotations

import json
from importlib.resources import files

GUEST = (
    "belljar.guest.protocol",
    "belljar.guest.tree",
    "belljar.guest.files",
    "belljar.guest.warm",
    "belljar.guest.cells",
    "belljar.guest.program",
    "belljar.guest.trust",
    "belljar.guest.tunnel",
    "belljar.guest.agent",
)

# Without importlib.abc, which brings megabytes of other modules for every fork to carry.
_PROGRAM = """\
import sys
from importlib.machinery import ModuleSpec

class Bundled:
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            package = any(other.startswith(name + ".") for other in SOURCES)
            return ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(SOURCES[module.__name__], f"<{module.__name__}>", "exec"), vars(module))

sys.meta_path.insert(0, Bundled())
__import__(sys.argv[1])
main = sys.modules[sys.argv[1]].main
# Nothing of us is left for a program to find, nor text for every fork to carry.
del sys.meta_path[0], SOURCES
for name in [name for name in sys.modules if name.split(".")[0] == "belljar"]:
    del sys.modules[name]
main(SETTINGS)
"""


def pack(modules: tuple[str, ...], settings: dict[str, object]) -> bytes:
    """A program that calls `main(settings)` of the module named by its first argument."""
    sources = {}
    for module in modules:
        package, _, name = module.rpartition(".")
        sources[module] = files(package).joinpath(name + ".py").read_text()
        while package:
            sources.setdefault(package, "")
            package = package.rpartition(".")[0]
    return json.dumps([_PROGRAM, sources, settings]).encode()


def command(python: str, fd: int, module: str, *options: str) -> list[str]:
    """Run a packed program that stands on a descriptor."""
    start = f"import json; PROGRAM, SOURCES, SETTINGS = json.load(open({fd}, closefd=False)); exec(PROGRAM)"
    return [python, *options, "-c", start, module]
