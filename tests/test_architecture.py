"""Who may import whom. The table is the architecture; the tests keep it true."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import belljar

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "belljar"
SRC = Path(belljar.__file__).parent
SOURCES = sorted(SRC.rglob("*.py"))
WORDS = {"models", "errors"}

MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"client", "inprocess"},
    "__main__": {"cli"},
    "errors": set(),
    "models": {"errors"},
    "paths": {"errors"},
    "wording": set(),
    "processes": set(),
    "strictyaml": {"errors", "wording"},
    "settings": {*WORDS, "wording", "strictyaml"},
    "config": {*WORDS, "wording", "strictyaml", "settings"},
    "policy": {*WORDS, "wording", "strictyaml", "paths"},
    "guest": set(),
    "engines": {*WORDS, "guest", "paths", "processes"},
    "egress": {*WORDS, "wording", "strictyaml"},
    "audit": {*WORDS},
    "metrics": set(),
    "tracing": {*WORDS, "audit"},
    "tokens": {*WORDS},
    "execution": {*WORDS, "paths", "policy", "guest", "engines", "audit", "metrics", "tracing"},
    "flows": {*WORDS, "wording", "strictyaml", "paths", "policy", "guest", "execution", "audit", "client"},
    "wiring": {*WORDS, "settings", "config", "policy", "egress", "engines", "execution"},
    "service": {
        *WORDS,
        "processes",
        "config",
        "engines",
        "audit",
        "metrics",
        "tracing",
        "tokens",
        "execution",
        "flows",
        "wiring",
    },
    "api": {
        *WORDS,
        "wording",
        "paths",
        "guest",
        "settings",
        "config",
        "policy",
        "engines",
        "audit",
        "tokens",
        "execution",
        "flows",
        "wiring",
        "service",
        "client",
        "mcp",
    },
    "client": {*WORDS, "config"},
    "mcp": {*WORDS, "wording", "client"},
    "inprocess": {*WORDS, "config", "client", "api", "service"},
    "sandboxes": {*WORDS, "config", "client", "inprocess"},
}
"""By first part of the name. A row for all that a part may name, not only for what it names today."""

CLI_AT_TOP = {"errors"}
"""`cli` may import anything, but beyond this only inside the function that needs it: start-up is felt."""

LAUNCHER_MODULES = tuple(
    f"belljar.engines.{name}"
    for name in (
        "cgroup",
        "kernelfs",
        "jail.boot",
        "jail.experiments",
        "jail.launcher",
        "jail.mounts",
        "jail.network",
        "jail.privileges",
        "jail.rootfs",
        "jail.syscalls",
        "jail.userns",
    )
)
"""Run in the jail's launcher or as a program beside it, where nothing is installed: standard library, the guest and each other."""

HEAVY = {"asyncio", "opentelemetry", "rich", "tree_sitter", "yaml"}
"""Not to be imported by a command that needs none of them."""

SAYS_NOTHING = {"common", "constants", "core", "helper", "helpers", "misc", "types", "util", "utils"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}


class Import(NamedTuple):
    name: str
    """Whole name; of `from a import b`, `a.b`."""
    line: int
    at_top: bool
    """Imported when the module is; not inside a function, nor for type checkers only."""


def area(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    return ".".join((PACKAGE, *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")


def imports(path: Path) -> Iterator[Import]:
    package = (PACKAGE, *path.relative_to(SRC).parts[:-1])
    tree = ast.parse(path.read_text())
    at_top = {id(node) for node in _run_at_import(tree)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = (*base, *([node.module] if node.module else []))
            names = [".".join((*stem, alias.name)) for alias in node.names]
        for name in names:
            yield Import(name, getattr(node, "lineno", 0), id(node) in at_top)


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        types_only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not function and not types_only:
            yield child
            yield from _run_at_import(child)


def parts_used(path: Path) -> Iterator[tuple[str, Import]]:
    """Parts of belljar that a module imports; `belljar.__version__` belongs to none."""
    for one in imports(path):
        names = one.name.split(".")
        if names[0] == PACKAGE and len(names) > 1 and not names[1].startswith("__"):
            yield names[1], one


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(SRC)}:{line}"


def test_imports_point_inward() -> None:
    wrong = [
        f"{place(path, one.line)} imports {target}"
        for path in SOURCES
        if area(path) != "cli"
        for target, one in parts_used(path)
        if target != area(path) and target not in MAY_IMPORT.get(area(path), set())
    ]
    assert not wrong, "\n".join(wrong)


def test_every_part_has_a_row_in_the_table() -> None:
    assert {area(path) for path in SOURCES} - {"cli"} <= MAY_IMPORT.keys()


def test_the_table_has_no_loop() -> None:
    left = dict(MAY_IMPORT)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_the_command_line_imports_the_world_only_where_it_needs_it() -> None:
    wrong = [
        f"{place(path, one.line)} imports {target} at the top"
        for path in SOURCES
        if area(path) == "cli"
        for target, one in parts_used(path)
        if one.at_top and target not in CLI_AT_TOP | {"cli"}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_guest_needs_only_the_standard_library() -> None:
    assert not list(foreign("guest", {module_name(path) for path in SOURCES if area(path) == "guest"}))


def test_engines_do_not_lean_on_each_other() -> None:
    """What two of them need is one level up."""
    engines = {"docker", "jail"}
    wrong = [
        f"{place(path, one.line)} imports {one.name}"
        for path in SOURCES
        if area(path) == "engines" and path.parent.name in engines
        for one in imports(path)
        for other in engines - {path.parent.name}
        if one.name.startswith(f"{PACKAGE}.engines.{other}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_launcher_module_exists() -> None:
    assert set(LAUNCHER_MODULES) <= {module_name(path) for path in SOURCES}


def test_the_launcher_needs_only_the_standard_library_and_the_guest() -> None:
    guest = {module_name(path) for path in SOURCES if area(path) == "guest"}
    assert not list(foreign("engines", guest | set(LAUNCHER_MODULES), only=set(LAUNCHER_MODULES)))


def foreign(part: str, own: set[str], only: set[str] | None = None) -> Iterator[str]:
    for path in SOURCES:
        if area(path) == part and (only is None or module_name(path) in only):
            for one in imports(path):
                stdlib = one.name.split(".")[0] in sys.stdlib_module_names
                if not stdlib and one.name not in own and one.name.rpartition(".")[0] not in own:
                    yield f"{place(path, one.line)} imports {one.name}"


def test_only_config_reads_the_environment() -> None:
    wrong = [
        f"{place(path, line)} reads the environment"
        for path in SOURCES
        if area(path) != "config"
        for line in environment_uses(path)
    ]
    assert not wrong, "\n".join(wrong)


def environment_uses(path: Path) -> Iterator[int]:
    """Lines that read it. What runs in a jar may set the program's environment, but not read its own."""
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    in_jar = path.is_relative_to(SRC / "guest") or path.is_relative_to(SRC / "engines/jail")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            if ENVIRONMENT & {alias.name for alias in node.names}:
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT:
            above = parents[node]
            sets = isinstance(above, ast.Attribute) and above.attr in ("clear", "update")
            sets |= isinstance(above, ast.Subscript) and not isinstance(above.ctx, ast.Load)
            if not (in_jar and sets):
                yield node.lineno


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {name for path in SOURCES for name in path.relative_to(SRC).with_suffix("").parts}
    assert not names & SAYS_NOTHING


def test_every_module_says_what_it_owns() -> None:
    assert not [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]


def test_all_lists_are_sorted() -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "RUF022", str(SRC)]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_lists_are_complete() -> None:
    """Every public class and function of a module that has a list is on it, and nothing that is not there.

    The functions of `cli` are commands: Typer calls them, nobody imports them.
    """
    wrong = []
    for path in SOURCES:
        if (listed := _all(path)) is None or area(path) == "cli":
            continue
        tree = ast.parse(path.read_text())
        for node in tree.body:
            name = getattr(node, "name", "_")  # of a class or function
            if not name.startswith("_") and name not in listed:
                wrong.append(f"{place(path, node.lineno)} does not list {name}")
        names = {one.name.rpartition(".")[2] for one in imports(path)}
        names |= {getattr(node, "name", "") or getattr(node, "id", "") for node in ast.walk(tree)}
        wrong += [f"{place(path, 1)} lists {name}, which is not there" for name in set(listed) - names]
    assert not wrong, "\n".join(wrong)


def _all(path: Path) -> list[str] | None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_any_module_starts_nothing() -> None:
    """No thread, no child, no open descriptor, no word."""
    names = [name for path in SOURCES if not (name := module_name(path)).endswith("__main__")]
    facts = python(
        "import importlib, os\n"
        "def facts(): return os.listdir('/proc/self/task').__len__(), sorted(os.listdir('/proc/self/fd')), "
        "open(f'/proc/self/task/{os.getpid()}/children').read()\n"
        "before = facts()\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "after = facts()\n"
        "print(before == after, before, after)"
    )
    assert facts.startswith("True"), facts


def test_the_version_is_printed_without_importing_the_world() -> None:
    loaded = python(
        "import sys\n"
        "sys.argv = ['belljar', '--version']\n"
        "from belljar.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sys.modules)"
    )
    assert belljar.__version__ in loaded.splitlines()[0]
    assert not HEAVY & set(loaded.splitlines()[-1].split())


def test_settings_are_read_without_importing_yaml_when_there_is_no_file(tmp_path: Path) -> None:
    loaded = python(
        "import sys; from pathlib import Path; from belljar import config\n"
        f"nothing = Path({str(tmp_path)!r})\n"
        "config.load(environ={}, cwd=Path('/'), home=nothing, machine_file=nothing / 'x')\n"
        "print(*sys.modules)"
    )
    assert not HEAVY & set(loaded.split())
