"""Our modules as one Python program that any interpreter can run, also one we know nothing of.

No image and no tree has to contain belljar: it goes down the wire at start, so its version always matches
the host's. As text, which every interpreter understands, and compiled, for one that is like the host's:
compiling would take it longer than all else that it does before it is ready.
"""

from __future__ import annotations

import marshal
import zlib
from importlib.resources import files
from importlib.util import MAGIC_NUMBER
from types import CodeType

from belljar.guest.protocol import MARSHAL

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

# With nothing of importlib, which brings other modules for every start to load and every fork to carry.
_PROGRAM = """\
import marshal, sys, zlib
from _frozen_importlib_external import MAGIC_NUMBER

magic, compiled, texts = MODULES
if magic == MAGIC_NUMBER:
    CODE = marshal.loads(zlib.decompress(compiled))
else:
    TEXTS = marshal.loads(zlib.decompress(texts))
    CODE = {name: compile(text, f"<{name}>", "exec") for name, text in TEXTS.items()}
ModuleSpec = type(sys.__spec__)

class Bundled:
    def find_spec(self, name, path=None, target=None):
        if name in CODE:
            package = any(other.startswith(name + ".") for other in CODE)
            return ModuleSpec(name, self, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(CODE[module.__name__], vars(module))

sys.meta_path.insert(0, Bundled())
__import__(sys.argv[1])
main = sys.modules[sys.argv[1]].main
# Nothing of us is left for a program to find, nor for every fork to carry.
del sys.meta_path[0]
for name in [name for name in sys.modules if name.split(".")[0] == "belljar"]:
    del sys.modules[name]
for name in {"CODE", "MODULES", "PROGRAM", "TEXTS", "compiled", "texts"} & globals().keys():
    del globals()[name]
main(SETTINGS)
"""


def pack(modules: tuple[str, ...], settings: dict[str, object]) -> bytes:
    """A program that calls `main(settings)` of the module named by its first argument."""
    texts = {}
    for module in modules:
        package, _, name = module.rpartition(".")
        texts[module] = files(package).joinpath(name + ".py").read_text("utf-8")
        while package:
            texts.setdefault(package, "")
            package = package.rpartition(".")[0]
    code = {name: compile(text, f"<{name}>", "exec", dont_inherit=True) for name, text in texts.items()}
    packed = (MAGIC_NUMBER, _packed(code, marshal.version), _packed(texts, MARSHAL))
    return marshal.dumps((_PROGRAM, packed, settings), MARSHAL)


def _packed(value: dict[str, str] | dict[str, CodeType], version: int) -> bytes:
    return zlib.compress(marshal.dumps(value, version))


def command(python: str, fd: int, module: str, *options: str) -> list[str]:
    """Run a packed program that stands on a descriptor."""
    return [python, *options, "-c", start(f"open({fd}, 'rb', closefd=False)"), module]


def start(source: str) -> str:
    """What `python3 -c` is told: run what a file, here named by an expression, holds."""
    return f"import marshal, sys; PROGRAM, MODULES, SETTINGS = marshal.load({source}); exec(PROGRAM)"
