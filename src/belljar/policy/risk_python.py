"""What a Python program could do, read from its syntax tree.

Every expression is traced to the dotted names it may stand for, so that an alias changes nothing:

    import os as o; run = getattr(o, 'sys' + 'tem')   ─►   run is os.system

A name is followed through imports, assignments, `getattr`, `__import__`, `sys.modules`, `globals()` and
constant strings; scopes are not told apart, which can only find more. Mentioning a dangerous function
counts like calling it. What escapes this (a module kept in a list, a computed attribute of a module) is
a finding of its own.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator

from belljar.models import Finding, RiskTier
from belljar.policy.risk import dangers, prefixes

_CRITICAL, _HIGH, _MEDIUM, _LOW = RiskTier.CRITICAL, RiskTier.HIGH, RiskTier.MEDIUM, RiskTier.LOW

_Origins = frozenset[str]
_NOTHING: _Origins = frozenset()

# `ast.parse` warns about odd escapes; `catch_warnings` changes process-wide state for the moment.
_PARSING = threading.Lock()

# Enough for any honest chain of aliases; each round is linear in the program.
_MAX_ROUNDS = 8
_MAX_TEXT = 256


def _members(module: str, names: str) -> str:
    return " ".join(f"{module}.{name}" for name in names.split())


# Importing one of these is a finding, because of what it is for.
_MODULES = dangers(
    (_CRITICAL, "starts programs", "subprocess pty _posixsubprocess pexpect sh plumbum invoke"),
    (_CRITICAL, "calls native code", "ctypes _ctypes cffi"),
    (_CRITICAL, "runs code given as text", "code codeop runpy"),
    (_HIGH, "opens the network", """
        socket _socket ssl _ssl socketserver requests urllib urllib2 urllib3 http httplib httplib2
        httpx httpx2 aiohttp ftplib smtplib poplib imaplib nntplib telnetlib xmlrpc websocket websockets
        paramiko asyncssh fabric pycurl boto3 botocore grpc zmq pika redis pymongo psycopg psycopg2 asyncpg
        pymysql kafka scapy dns selenium playwright webbrowser uvicorn
    """),
    (_HIGH, "installs packages", "pip ensurepip setuptools easy_install"),
    # Loading is worse than the rest of it, see below.
    (_MEDIUM, "can load objects that run code", "pickle _pickle cPickle dill cloudpickle shelve marshal"),
    (_MEDIUM, "starts processes", "multiprocessing"),
)  # fmt: skip
# Parts of such a module that are harmless by themselves.
_HARMLESS = frozenset({"urllib.parse", "urllib.error", "http.HTTPStatus"})

_NAMES = dangers(
    (_CRITICAL, "runs code given as text", "builtins.eval builtins.exec builtins.compile"),
    (_CRITICAL, "imports a module by name", "builtins.__import__"),
    (_CRITICAL, "starts programs", _members("os", """
        system popen popen2 popen3 popen4 startfile posix_spawn posix_spawnp
        execl execle execlp execlpe execv execve execvp execvpe
        spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe
    """)),
    (_CRITICAL, "starts programs", "asyncio.create_subprocess_exec asyncio.create_subprocess_shell"),
    (_CRITICAL, "builds code objects", "types.FunctionType types.CodeType"),
    (_CRITICAL, "reaches into the interpreter", "sys._getframe sys.settrace sys.setprofile"),
    (_HIGH, "reaches into the interpreter", "inspect.currentframe inspect.stack gc.get_objects"),
    (_HIGH, "runs code given as text", "timeit.timeit timeit.repeat timeit.Timer cProfile.run profile.run"),
    (_HIGH, "starts or signals processes", _members("os", "fork forkpty kill killpg")),
    (_HIGH, "opens the network", _members("asyncio", """
        open_connection start_server open_unix_connection start_unix_server
    """)),
    (_HIGH, "changes or deletes files", _members("os", """
        open remove unlink rmdir removedirs rename renames replace truncate ftruncate chmod fchmod lchmod
        chown fchown lchown link symlink mkfifo mknod sendfile setuid setgid chroot
    """)),
    (_HIGH, "changes or deletes files", _members("shutil", """
        rmtree move copy copy2 copyfile copytree chown unpack_archive make_archive
    """)),
    # Above the seed's tier for pickle: what is loaded decides which code runs.
    (_HIGH, "loads objects that run code", """
        pickle.load pickle.loads pickle.Unpickler _pickle.load _pickle.loads cPickle.load cPickle.loads
        dill.load dill.loads cloudpickle.load cloudpickle.loads marshal.load marshal.loads shelve.open
        joblib.load torch.load pandas.read_pickle yaml.load yaml.unsafe_load yaml.full_load
    """),
    (_HIGH, "writes files", _members("numpy", "save savez savez_compressed savetxt")),
    (_MEDIUM, "reads data", "json.load json.loads yaml.safe_load fileinput.input linecache.getlines"),
    (_MEDIUM, "reads data", _members("numpy", "load loadtxt genfromtxt")),
    (_MEDIUM, "opens a database", "sqlite3.connect"),
    (_LOW, "lists files", _members("os", "listdir scandir walk fwalk stat lstat")),
    (_LOW, "lists files", "glob.glob glob.iglob"),
    (_LOW, "reads the environment", _members("os", "environ environb getenv")),
    (_LOW, "makes directories", "os.mkdir os.makedirs tempfile.mkdtemp tempfile.TemporaryDirectory"),
)  # fmt: skip

# Attributes that tell by their name what they do, whatever the object.
_METHODS = dangers(
    (_CRITICAL, "reaches into the interpreter", """
        __subclasses__ __globals__ __builtins__ __code__ __closure__
        f_back f_globals f_builtins f_locals gi_frame cr_frame tb_frame
    """),
    (_CRITICAL, "starts programs", "subprocess_exec subprocess_shell"),
    (_CRITICAL, "runs code of a module", "exec_module load_module"),
    (_HIGH, "writes files", """
        write_text write_bytes to_csv to_excel to_parquet to_feather to_hdf to_pickle to_sql savefig
        extractall
    """),
    (_HIGH, "changes or deletes files", "unlink rmdir symlink_to hardlink_to"),
    (_MEDIUM, "reads files", "read_text read_bytes read_csv read_excel read_parquet read_json"),
    (_LOW, "lists files", "iterdir rglob"),
)  # fmt: skip

# Modules whose parts are told apart, so that one passed around unseen is a finding.
_FOLLOWED = frozenset({"os", "sys", "builtins", "importlib", "asyncio", "types", "subprocess", "globals"})
# Of these, the ones other modules hold under the same name: `shutil.os`, `random._os`.
_LENT = frozenset({"os", "sys", "builtins", "importlib", "subprocess"})

_OPENERS = frozenset(
    """
    builtins.open io.open _io.open codecs.open os.fdopen gzip.open bz2.open lzma.open tarfile.open
    zipfile.ZipFile io.FileIO _io.FileIO aiofiles.open
    """.split()
)
_IMPORTERS = frozenset({"builtins.__import__", "importlib.import_module", "importlib.__import__"})
_LOOKUPS = frozenset({"builtins.getattr", "operator.attrgetter", "operator.methodcaller"})
_NAMESPACES = frozenset({"builtins.globals", "builtins.locals", "builtins.vars"})
_INSPECTORS = frozenset(
    f"builtins.{name}" for name in "hasattr dir help print type repr str id isinstance".split()
)
_PLUMBING = frozenset({"sys.modules", "builtins.chr", "os.path", "importlib.util", "importlib.machinery"})

_SYNONYMS = {"posix": "os", "nt": "os", "_io": "io", "__builtin__": "builtins", "__builtins__": "builtins"}


_KNOWN = frozenset(
    prefix
    for name in (
        *_NAMES,
        *_MODULES,
        *_FOLLOWED,
        *_OPENERS,
        *_IMPORTERS,
        *_LOOKUPS,
        *_NAMESPACES,
        *_INSPECTORS,
        *_PLUMBING,
    )
    for prefix in prefixes(name)
)
"""The only dotted names that are followed, which keeps every set small."""


def find_in_python(code: str) -> list[Finding]:
    tree = _parsed(code)
    if isinstance(tree, Finding):
        return [tree]
    return [*_declared_encoding(code), *_Program(tree).findings()]


def _parsed(code: str) -> ast.Module | Finding:
    # High, so that a person looks: the jar's Python may be newer than ours and run what we cannot read.
    try:
        with _PARSING, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as exc:
        return Finding(_HIGH, f"this is not Python that can be read: {exc.msg}", max(exc.lineno or 1, 1))
    except ValueError:
        return Finding(_HIGH, "this is not text that Python reads", 1)
    except (RecursionError, MemoryError):
        return Finding(_HIGH, "the code is nested too deeply to be read", 1)


_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)


def _declared_encoding(code: str) -> Iterator[Finding]:
    """A declared encoding can hide code in what reads as a comment here (PEP 263 defines it by a pattern)."""
    for number, line in enumerate(code[:2000].splitlines()[:2], start=1):
        match = _CODING.match(line)
        name = match.group(1).lower().replace("_", "-") if match else "utf-8"
        if name not in ("utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1"):
            yield Finding(_HIGH, f"declares the encoding {name}, in which it may read differently", number)


def _known(names: Iterable[str]) -> _Origins:
    return frozenset(name for name in names if name in _KNOWN)


def _canonical(module: str) -> str:
    head, dot, rest = module.partition(".")
    return _SYNONYMS.get(head, head) + dot + rest


class _Program:
    """One program: first which name may stand for what, then what it does with them."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(_inner_first(tree))
        self.parents: dict[int, ast.AST] = {
            id(child): node for node in self.nodes for child in ast.iter_child_nodes(node)
        }
        self.names: dict[str, _Origins] = {"__builtins__": frozenset({"builtins"})}
        self.texts: dict[str, str] = {}
        self.bindings = Counter(filter(None, map(_bound_name, self.nodes)))
        self.origins: dict[int, _Origins] = {}
        self.constants: dict[int, str] = {}
        self.starred: set[str] = set()

    def findings(self) -> Iterator[Finding]:
        settled = self.settle()
        if not settled:
            yield Finding(_HIGH, "names are handed on too often to be followed", 1)
        for node in self.nodes:
            yield from self.at(node)

    # First: what stands for what

    def settle(self) -> bool:
        for _ in range(_MAX_ROUNDS):
            before = (dict(self.names), dict(self.texts), len(self.starred))
            for node in self.nodes:
                self.resolve(node)
            if before == (self.names, self.texts, len(self.starred)):
                return True
        return False

    def bind(self, name: str, origins: _Origins) -> None:
        self.names[name] = self.names.get(name, _NOTHING) | origins

    def resolve(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    module = _canonical(alias.name)
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.bind(bound, _known([module if alias.asname else module.partition(".")[0]]))
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    if alias.name == "*":
                        self.starred.add(_canonical(module or ""))
                    else:
                        self.bind(
                            alias.asname or alias.name, self.member(_canonical(module or ""), alias.name)
                        )
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, value)
            case ast.NamedExpr(target=target, value=value):
                self.assign(target, value)
                self.settle_expression(node, self.of(value))
            case ast.expr():
                if (text := self.folded(node)) is not None:
                    self.constants[id(node)] = text
                self.settle_expression(node, self.traced(node))

    def settle_expression(self, node: ast.AST, origins: _Origins) -> None:
        if origins:
            self.origins[id(node)] = origins

    def of(self, node: ast.AST) -> _Origins:
        return self.origins.get(id(node), _NOTHING)

    def text(self, node: ast.AST | None) -> str | None:
        return self.constants.get(id(node))

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if origins := self.of(value):
                self.bind(target.id, origins)
            # A name that is bound twice may hold anything else.
            if (text := self.text(value)) is not None and self.bindings[target.id] == 1:
                self.texts[target.id] = text
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for inner, part in zip(target.elts, value.elts, strict=False):
                if isinstance(inner, ast.Name):
                    self.assign(inner, part)

    def member(self, module: str, name: str) -> _Origins:
        """What `module.name` may stand for; modules lend each other out (`shutil.os`, `random._os`)."""
        lent = _SYNONYMS.get(name, name.lstrip("_"))
        return _known([f"{module}.{name}"]) | (frozenset({lent}) if lent in _LENT else _NOTHING)

    def traced(self, node: ast.expr) -> _Origins:
        match node:
            case ast.Name(id=name):
                # A session may have imported it in an earlier run.
                unbound = [] if name in self.names or name in self.bindings else [_canonical(name)]
                lent = [f"{module}.{name}" for module in ("builtins", *self.starred)]
                return self.names.get(name, _NOTHING) | _known([*unbound, *lent])
            case ast.Attribute(value=value, attr=attr):
                # `x.__dict__[…]` is `x` asked for a member.
                return self.of(value) if attr == "__dict__" else self.members(value, attr)
            case ast.IfExp(body=body, orelse=orelse):
                return self.of(body) | self.of(orelse)
            case ast.BoolOp(values=values):
                return frozenset().union(*map(self.of, values))
            case ast.Subscript(value=value, slice=key):
                return self.looked_up(value, key)
            case ast.Call():
                return self.returned(node)
        return _NOTHING

    def members(self, value: ast.expr, name: str) -> _Origins:
        return frozenset().union(
            self.member("", name), *(self.member(origin, name) for origin in self.of(value))
        )

    def looked_up(self, value: ast.expr, key: ast.expr) -> _Origins:
        name = self.text(key)
        if name is None:
            return _NOTHING
        origins = self.of(value)
        found = self.members(value, name) if origins & _FOLLOWED else _NOTHING
        if "sys.modules" in origins:
            found |= _known([_canonical(name)])
        if "globals" in origins:
            found |= self.names.get(name, _NOTHING)
        return found

    def returned(self, call: ast.Call) -> _Origins:
        functions = self.of(call.func)
        arguments = call.args
        first = arguments[0] if arguments else next((k.value for k in call.keywords if k.arg == "name"), None)
        if functions & _IMPORTERS and (name := self.text(first)) is not None:
            # __import__('a.b') gives a, import_module('a.b') gives b.
            module = _canonical(name)
            return _known([module, module.partition(".")[0]])
        if (
            "builtins.getattr" in functions
            and len(arguments) > 1
            and (name := self.text(arguments[1])) is not None
        ):
            return self.members(arguments[0], name)
        if functions & _NAMESPACES:
            return self.of(arguments[0]) if arguments else frozenset({"globals"})
        match call.func:
            case ast.Call(func=maker, args=[attribute, *_]) if self.of(maker) & _LOOKUPS and arguments:
                if (name := self.text(attribute)) is not None:
                    return self.members(arguments[0], name)
            case ast.Attribute(value=value, attr="get" | "pop" | "setdefault" | "__getitem__") if arguments:
                return self.looked_up(value, arguments[0])
            case ast.Attribute(value=value, attr="__getattribute__" | "__getattr__") if arguments:
                if (name := self.text(arguments[-1])) is not None:
                    return self.members(value, name)
        return _NOTHING

    def folded(self, node: ast.expr) -> str | None:
        """The constant text of an expression, if it is short and plainly one."""
        text: str | None = None
        match node:
            case ast.Constant(value=str() as text):
                pass
            case ast.Name(id=name):
                text = self.texts.get(name)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                text = self.joined("", [left, right])
            case ast.JoinedStr(values=values):
                text = self.joined("", values)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                text = self.text(value)
            case ast.Call(
                func=ast.Attribute(value=separator, attr="join"), args=[ast.List() | ast.Tuple() as parts]
            ):
                if (glue := self.text(separator)) is not None:
                    text = self.joined(glue, parts.elts)
            case ast.Call(func=function, args=[ast.Constant(value=int() as code)]):
                if "builtins.chr" in self.of(function) and 0 <= code < 0x110000:
                    text = chr(code)
            case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp())):
                text = self.text(value)
                text = text[::-1] if text is not None else None
        return text if text is not None and len(text) <= _MAX_TEXT else None

    def joined(self, glue: str, parts: list[ast.expr]) -> str | None:
        texts = [self.text(part) for part in parts[:_MAX_TEXT]]
        return glue.join(text for text in texts if text is not None) if None not in texts else None

    # Then: what it does

    def at(self, node: ast.AST) -> Iterator[Finding]:
        line = getattr(node, "lineno", 1)
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from self.imported(_canonical(alias.name), line)
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    source = _canonical(module or "")
                    yield from self.imported(source if alias.name == "*" else f"{source}.{alias.name}", line)
            case ast.Name(ctx=ast.Load()):
                yield from self.mentioned(node, line)
            case ast.Attribute(attr=attr):
                yield from self.mentioned(node, line)
                if attr in _METHODS:
                    tier, reason = _METHODS[attr]
                    yield Finding(tier, f".{attr} {reason}", line)
            case ast.Subscript(value=value, slice=key):
                yield from self.mentioned(node, line)
                if self.text(key) is None:
                    yield from self.computed(value, line)
            case ast.Call():
                yield from self.called(node, line)

    def imported(self, name: str, line: int) -> Iterator[Finding]:
        if any(prefix in _HARMLESS for prefix in prefixes(name)):
            return
        for prefix in prefixes(name):
            if prefix in _MODULES:
                tier, reason = _MODULES[prefix]
                yield Finding(tier, f"{prefix} {reason}", line)
            if prefix in _NAMES:
                tier, reason = _NAMES[prefix]
                yield Finding(tier, f"{prefix} {reason}", line)

    def mentioned(self, node: ast.expr, line: int) -> Iterator[Finding]:
        parent = self.parents.get(id(node))
        called = isinstance(parent, ast.Call) and parent.func is node
        for origin in sorted(self.of(node)):
            if origin in _NAMES and not (called and origin in _IMPORTERS):
                tier, reason = _NAMES[origin]
                yield Finding(tier, f"{origin.removeprefix('builtins.')} {reason}", line)
            elif origin in _MODULES and not (isinstance(node, ast.Name) and node.id in self.names):
                tier, reason = _MODULES[origin]
                yield Finding(tier, f"{origin} {reason}", line)
            elif origin in _OPENERS and not called:
                yield Finding(
                    _HIGH, f"{origin.removeprefix('builtins.')} is handed on and may write files", line
                )
            if (
                origin in _FOLLOWED
                and not isinstance(node, ast.Attribute)
                and not self.is_followed(node, parent)
            ):
                yield Finding(_HIGH, f"the module {origin} is handed on out of sight", line)

    def is_followed(self, node: ast.expr, parent: ast.AST | None) -> bool:
        """Whether what is done with a module at this place is understood elsewhere."""
        match parent:
            case ast.Attribute() | ast.NamedExpr() | ast.Expr() | ast.IfExp() | ast.BoolOp():
                return True
            case ast.Assign(targets=targets):
                return all(isinstance(target, ast.Name) for target in targets)
            case ast.Subscript(value=value):
                return value is node
            case ast.Call(func=func, args=args):
                return (
                    func is node
                    or bool(self.of(func) & (_LOOKUPS | _NAMESPACES | _INSPECTORS))
                    and node in args[:1]
                )
        return False

    def computed(self, value: ast.expr, line: int) -> Iterator[Finding]:
        for origin in sorted(self.of(value) & (_FOLLOWED | {"sys.modules"})):
            tier = _CRITICAL if origin == "builtins" else _HIGH
            yield Finding(tier, f"a member of {origin} is chosen at run time", line)

    def called(self, call: ast.Call, line: int) -> Iterator[Finding]:
        functions = self.of(call.func)
        yield from self.mentioned(call, line)
        if functions & _IMPORTERS:
            yield from self.imports_by_name(call, line)
        if "builtins.getattr" in functions and len(call.args) > 1:
            if (name := self.text(call.args[1])) is None:
                yield from self.computed(call.args[0], line)
            elif name in _METHODS:
                yield Finding(_METHODS[name][0], f".{name} {_METHODS[name][1]}", line)
        if functions & _OPENERS:
            yield self.opened(call, 1, line)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "open" and not functions:
            yield self.opened(call, 0, line)

    def imports_by_name(self, call: ast.Call, line: int) -> Iterator[Finding]:
        first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "name"), None)
        name = self.text(first)
        if name is None:
            yield Finding(_CRITICAL, "imports a module whose name is only known at run time", line)
            return
        module = _canonical(name)
        if module.partition(".")[0] in _FOLLOWED:
            yield Finding(_CRITICAL, f"imports {name} by name, as code that hides something does", line)
        else:
            yield Finding(_MEDIUM, f"imports {name} by name", line)
        yield from self.imported(module, line)

    def opened(self, call: ast.Call, position: int, line: int) -> Finding:
        mode = call.args[position] if len(call.args) > position else None
        mode = next((keyword.value for keyword in call.keywords if keyword.arg == "mode"), mode)
        unpacked = any(isinstance(argument, ast.Starred) for argument in call.args) or any(
            keyword.arg is None for keyword in call.keywords
        )
        text = self.text(mode)
        if (mode is None and not unpacked) or (text is not None and not set(text) & set("wax+")):
            return Finding(_MEDIUM, "opens a file for reading", line)
        return Finding(
            _HIGH,
            "opens a file for writing" if text is not None else "opens a file, perhaps for writing",
            line,
        )


def _bound_name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
        case ast.MatchMapping(rest=name):
            return name
        case ast.alias(name=name, asname=asname):
            return asname or name.partition(".")[0]
    return None


def _inner_first(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node after its children, in the order of the source; without recursion."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(list(ast.iter_child_nodes(node))))
