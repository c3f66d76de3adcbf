"""What a JavaScript or TypeScript program could do, read from its syntax tree.

As for Python, every expression is traced to the dotted names it may stand for:

    const {exec: go} = require('child_process'); go('ls')   ─►   child_process.exec

The parser is tree-sitter, which never gives up and can take minutes over text made for it; it is fed
small pieces and gets no more of them once its time is over.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from belljar.models import Finding, RiskTier
from belljar.policy.risk import Danger, dangers, prefixes

if TYPE_CHECKING:
    from tree_sitter import Tree

_CRITICAL, _HIGH, _MEDIUM, _LOW = RiskTier.CRITICAL, RiskTier.HIGH, RiskTier.MEDIUM, RiskTier.LOW

PARSE_SECONDS = 1.0
# The parser asks for the next piece between bursts of work; the smaller, the more often it can be stopped.
_PIECE_BYTES = 256
_MAX_ROUNDS = 8
_MAX_TEXT = 256

_Origins = frozenset[str]
_NOTHING: _Origins = frozenset()


def _both(module: str, names: str) -> str:
    """Members that come in two kinds, with a callback and blocking."""
    return " ".join(f"{module}.{name} {module}.{name}Sync" for name in names.split())


_MODULES = dangers(
    (_CRITICAL, "starts programs", "child_process execa shelljs cross-spawn node-pty zx"),
    (_CRITICAL, "runs code given as text", "vm vm2 repl isolated-vm"),
    (_HIGH, "runs code beside this program", "worker_threads cluster inspector"),
    (_HIGH, "loads modules by name", "node:module"),
    (_HIGH, "opens the network", """
        net tls http https http2 dgram dns axios got node-fetch undici ws superagent request puppeteer
        puppeteer-core playwright socket.io socket.io-client express fastify ssh2 nodemailer mysql mysql2 pg
        redis ioredis mongodb mongoose ftp
    """),
    (_HIGH, "changes or deletes files", "fs-extra rimraf del"),
)  # fmt: skip

_NAMES = dangers(
    (_CRITICAL, "runs code given as text", "eval Function this.eval this.Function"),
    (_CRITICAL, "starts programs", "Deno.run Deno.Command Bun.spawn Bun.spawnSync Bun.$"),
    (_CRITICAL, "reaches native code", "process.binding process._linkedBinding process.dlopen Deno.dlopen"),
    (_HIGH, "signals processes", "process.kill process.abort Deno.kill"),
    (_HIGH, "loads modules by name", "process.mainModule module.require module.constructor"),
    (_HIGH, "runs code beside this program", "Worker SharedWorker"),
    (_HIGH, "opens the network", """
        fetch XMLHttpRequest WebSocket EventSource RTCPeerConnection navigator.sendBeacon importScripts
        Deno.connect Deno.listen Deno.serve Bun.serve Bun.connect Bun.listen
    """),
    (_HIGH, "writes or deletes files", _both("fs", """
        writeFile appendFile write writev truncate ftruncate rename rm rmdir unlink copyFile cp
        chmod fchmod lchmod chown fchown lchown link symlink utimes
    """)),
    (_HIGH, "writes or deletes files", """
        fs.createWriteStream Deno.writeFile Deno.writeTextFile Deno.remove Deno.rename Bun.write
    """),
    (_MEDIUM, "reads files", _both("fs", "readFile read readv")),
    (_MEDIUM, "reads files", "fs.createReadStream Deno.readFile Deno.readTextFile Bun.file"),
    (_MEDIUM, "runs compiled code", "WebAssembly"),
    (_LOW, "lists files", _both("fs", "readdir opendir stat lstat access exists realpath")),
    (_LOW, "lists files", "Deno.readDir"),
    (_LOW, "makes directories", _both("fs", "mkdir mkdtemp")),
    (_LOW, "makes directories", "Deno.mkdir"),
    (_LOW, "reads the environment", "process.env Deno.env"),
)  # fmt: skip

_GLOBAL_OBJECTS = frozenset({"globalThis", "global", "window", "self"})
# Things whose parts are told apart, so that one passed around unseen is a finding.
_FOLLOWED = _GLOBAL_OBJECTS | {"fs", "process", "require"}
_LOADERS = frozenset({"require", "process.getBuiltinModule", "module.require", "process.mainModule.require"})
_OPENERS = frozenset({"fs.open", "fs.openSync"})
_TIMERS = frozenset({"setTimeout", "setInterval", "setImmediate"})
_PLUMBING = frozenset({"node:module.createRequire", "Reflect.get", "String.fromCharCode", "this"})


_KNOWN = frozenset(
    prefix
    for name in (*_NAMES, *_MODULES, *_FOLLOWED, *_LOADERS, *_OPENERS, *_TIMERS, *_PLUMBING)
    for prefix in (*prefixes(name), name)
)

# An identifier in one of these places is being named, not used.
_BINDING_PLACES = frozenset(
    {
        ("variable_declarator", "name"), ("function_declaration", "name"), ("function_expression", "name"),
        ("generator_function_declaration", "name"), ("class_declaration", "name"), ("class", "name"),
        ("formal_parameters", None), ("arrow_function", "parameter"), ("catch_clause", "parameter"),
        ("pair_pattern", "value"), ("array_pattern", None), ("rest_pattern", None),
        ("assignment_pattern", "left"), ("object_assignment_pattern", "left"), ("import_clause", None),
        ("namespace_import", None),
        ("import_specifier", "name"), ("import_specifier", "alias"), ("import_require_clause", None),
        ("for_in_statement", "left"), ("required_parameter", "pattern"), ("optional_parameter", "pattern"),
        ("enum_declaration", "name"), ("labeled_statement", "label"),
    }
)  # fmt: skip

_ESCAPE = re.compile(r"\\(?:u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": ""}


@dataclass(slots=True, eq=False)
class _Node:
    kind: str
    place: str | None
    """The field of the parent that it fills."""
    start: int
    end: int
    line: int
    parent: _Node | None
    children: list[_Node] = field(default_factory=list)
    origins: _Origins = _NOTHING
    text: str | None = None
    """What the expression is, if that is a constant text."""

    def part(self, name: str) -> _Node | None:
        return next((child for child in self.children if child.place == name), None)

    @property
    def only(self) -> _Node | None:
        return self.children[0] if self.children else None


def find_in_javascript(code: str, *, typescript: bool = False) -> list[Finding]:
    findings = []
    if "\0" in code:
        findings.append(
            Finding(_HIGH, "a NUL has no place in a program", code.count("\n", 0, code.index("\0")) + 1)
        )
    source = code.replace("\0", " ").encode("utf-8", "replace")
    tree = _parsed(source, typescript)
    if tree is None:
        return [*findings, Finding(_HIGH, "the code is too tangled to be read", 1)]
    nodes = list(_inner_first(tree, source))
    if tree.root_node.has_error:
        # High, so that a person looks: the runtime may know syntax that this parser does not.
        line = min((node.line for node in nodes if node.kind in ("ERROR", "MISSING")), default=1)
        findings.append(Finding(_HIGH, "this is not code that can be read", line))
    findings += _Program(nodes, source).findings()
    return findings


def _parsed(source: bytes, typescript: bool) -> Tree | None:
    """The tree, or None if it took too long."""
    from tree_sitter import Language, Parser

    if typescript:
        import tree_sitter_typescript

        grammars = [tree_sitter_typescript.language_typescript(), tree_sitter_typescript.language_tsx()]
    else:
        import tree_sitter_javascript

        grammars = [tree_sitter_javascript.language()]
    deadline = time.monotonic() + PARSE_SECONDS
    late = False

    def piece(offset: int, _: object) -> bytes:
        nonlocal late
        late = late or time.monotonic() > deadline
        return b"" if late else source[offset : offset + _PIECE_BYTES]

    best: Tree | None = None
    for grammar in grammars:
        if best is None or best.root_node.has_error:
            tree = Parser(Language(grammar)).parse(piece)
            best = tree if not late and (best is None or not tree.root_node.has_error) else best
    return best


def _inner_first(tree: Tree, source: bytes) -> Iterator[_Node]:
    """Every node after its children, in the order of the source; without recursion."""
    # tree-sitter 0.26 takes a reference too many when the row of a node is read, which ends in a crash.
    newlines = [match.start() for match in re.finditer(b"\n", source)]
    cursor = tree.walk()
    above: list[_Node] = []
    while True:
        found = cursor.node
        if found is None:
            return
        parent = above[-1] if above else None
        kind = "MISSING" if found.is_missing else found.type
        line = bisect_left(newlines, found.start_byte) + 1
        node = _Node(kind, cursor.field_name, found.start_byte, found.end_byte, line, parent)
        if parent and (found.is_named or node.place == "operator") and kind != "comment":
            parent.children.append(node)
        if cursor.goto_first_child():
            above.append(node)
            continue
        yield node
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return
            yield above.pop()


def _known(names: Iterable[str]) -> _Origins:
    return frozenset(name for name in names if name in _KNOWN)


def _canonical(module: str) -> str:
    name = module.removeprefix("node:").removesuffix("/promises")
    # Not the variable `module` that every file has.
    return "node:module" if name == "module" else name


def _decoded(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        braced, four, two, char = match.groups()
        code = braced or four or two
        if code is None:
            return _ESCAPED.get(char, char)
        return chr(int(code, 16)) if int(code, 16) < 0x110000 else ""

    return _ESCAPE.sub(one, text) if "\\" in text else text


class _Program:
    """One program: first which name may stand for what, then what it does with them."""

    def __init__(self, nodes: list[_Node], source: bytes) -> None:
        self.nodes = nodes
        self.source = source
        self.names: dict[str, _Origins] = {}
        self.bound = {
            self.written(node)
            for node in nodes
            if (node.kind == "identifier" and self.is_binding(node))
            or node.kind == "shorthand_property_identifier_pattern"
        }

    def findings(self) -> Iterator[Finding]:
        if not self.settle():
            yield Finding(_HIGH, "names are handed on too often to be followed", 1)
        for node in self.nodes:
            for tier, reason in self.at(node):
                yield Finding(tier, reason, node.line)

    def written(self, node: _Node) -> str:
        return _decoded(self.source[node.start : node.end].decode("utf-8", "replace"))

    def is_binding(self, node: _Node) -> bool:
        return node.parent is not None and (node.parent.kind, node.place) in _BINDING_PLACES

    # First: what stands for what

    def settle(self) -> bool:
        for _ in range(_MAX_ROUNDS):
            before = dict(self.names)
            for node in self.nodes:
                self.resolve(node)
            if before == self.names:
                return True
        return False

    def bind(self, name: str, origins: _Origins) -> None:
        if origins:
            self.names[name] = self.names.get(name, _NOTHING) | origins

    def resolve(self, node: _Node) -> None:
        node.text = self.folded(node)
        match node.kind:
            case "variable_declarator":
                self.assign(node.part("name"), node.part("value"))
            case "assignment_expression":
                self.assign(node.part("left"), node.part("right"))
                node.origins = self.of(node.part("right"))
            case "import_statement":
                self.import_statement(node)
            case _:
                node.origins = self.traced(node)

    def of(self, node: _Node | None) -> _Origins:
        return node.origins if node else _NOTHING

    def assign(self, target: _Node | None, value: _Node | None) -> None:
        if target is None or value is None:
            return
        if target.kind == "identifier":
            self.bind(self.written(target), value.origins)
        elif target.kind == "object_pattern":
            for entry in target.children:
                key = entry.part("key") or entry.part("left") or entry
                name = entry.part("value") or key
                if entry.kind == "rest_pattern" and entry.only:
                    entry.origins, name = value.origins, entry.only
                else:
                    entry.origins = self.members(value.origins, key.text or self.written(key))
                self.bind(self.written(name), entry.origins)

    def import_statement(self, node: _Node) -> None:
        clause, source = node.only, self.import_source(node)
        if clause is None or source is None:
            return
        module = _known([_canonical(source)])
        for part in clause.children:
            if part.kind == "identifier":
                self.bind(self.written(part), module)
            elif part.kind == "namespace_import" and part.only:
                self.bind(self.written(part.only), module)
            for specifier in part.children if part.kind == "named_imports" else []:
                if name := specifier.part("name"):
                    specifier.origins = self.members(module, self.written(name))
                    self.bind(self.written(specifier.part("alias") or name), specifier.origins)

    def import_source(self, node: _Node) -> str | None:
        # `import fs = require('fs')` has it one level down.
        source = node.part("source") or (node.only and node.only.part("source"))
        return source.text if source else None

    def members(self, origins: _Origins, name: str) -> _Origins:
        if name in ("default", "promises"):
            return origins
        found = _known(f"{origin}.{name}" for origin in origins)
        return found | self.as_global(name) if origins & _GLOBAL_OBJECTS else found

    def as_global(self, name: str) -> _Origins:
        return _known([name])

    def traced(self, node: _Node) -> _Origins:
        match node.kind:
            case "identifier" | "shorthand_property_identifier":
                written = self.written(node)
                found = self.names.get(written, _NOTHING)
                # Declaring a name of one's own does not take the global one away everywhere.
                hidden = written in self.bound and written not in _NAMES
                return found if hidden else found | self.as_global(written)
            case "this":
                return frozenset({"this"})
            case "member_expression" | "subscript_expression":
                name = self.member_name(node)
                return self.members(self.of(node.part("object")), name) if name is not None else _NOTHING
            case "parenthesized_expression" | "await_expression":
                return self.of(node.only)
            case "non_null_expression" | "as_expression" | "satisfies_expression":
                return self.of(node.only)
            case "type_assertion" | "sequence_expression":
                return self.of(node.children[-1]) if node.children else _NOTHING
            case "ternary_expression":
                return self.of(node.part("consequence")) | self.of(node.part("alternative"))
            case "binary_expression" if self.operator(node) in ("||", "&&", "??"):
                return self.of(node.part("left")) | self.of(node.part("right"))
            case "call_expression":
                return self.returned(node)
        return _NOTHING

    def member_name(self, node: _Node) -> str | None:
        """The name of the member that is taken, if it is not computed at run time."""
        key = node.part("property") or node.part("index")
        if key is None:
            return None
        return self.written(key) if key.kind == "property_identifier" else key.text

    def operator(self, node: _Node) -> str:
        operator = node.part("operator")
        return self.written(operator) if operator else ""

    def arguments(self, call: _Node) -> list[_Node]:
        arguments = call.part("arguments")
        return arguments.children if arguments and arguments.kind == "arguments" else []

    def returned(self, call: _Node) -> _Origins:
        function = call.part("function")
        arguments = self.arguments(call)
        if function is None:
            return _NOTHING
        if "node:module.createRequire" in function.origins:
            return frozenset({"require"})
        if not arguments:
            return _NOTHING
        if self.loads(function) and arguments[0].text is not None:
            return _known([_canonical(arguments[0].text)])
        if "Reflect.get" in function.origins and len(arguments) > 1 and arguments[1].text is not None:
            return self.members(arguments[0].origins, arguments[1].text)
        if self.member_name(function) == "bind":
            return self.of(function.part("object"))
        return _NOTHING

    def loads(self, function: _Node) -> bool:
        return function.kind == "import" or bool(function.origins & _LOADERS)

    def folded(self, node: _Node) -> str | None:
        """The constant text of an expression, if it is short and plainly one."""
        text: str | None = None
        match node.kind:
            case "string" | "template_string" if node.end - node.start < 4 * _MAX_TEXT:
                if all(child.kind != "template_substitution" for child in node.children):
                    text = self.written(node)[1:-1]
            case "parenthesized_expression":
                text = node.only.text if node.only else None
            case "binary_expression" if self.operator(node) == "+":
                left, right = node.part("left"), node.part("right")
                if left and right and left.text is not None and right.text is not None:
                    text = left.text + right.text
            case "call_expression":
                text = self.from_char_codes(node)
        return text if text is not None and len(text) <= _MAX_TEXT else None

    def from_char_codes(self, call: _Node) -> str | None:
        arguments = self.arguments(call)[:_MAX_TEXT]
        if "String.fromCharCode" not in self.of(call.part("function")):
            return None
        codes = [self.written(argument) for argument in arguments]
        if not all(re.fullmatch("[0-9]{1,5}", code) for code in codes):
            return None
        return "".join(chr(int(code)) for code in codes)

    # Then: what it does

    def at(self, node: _Node) -> Iterator[Danger]:
        match node.kind:
            case "import_statement" | "export_statement":
                yield from self.loaded(self.import_source(node) or "")
            case "identifier" | "shorthand_property_identifier":
                if not self.is_binding(node):
                    yield from self.mentioned(node)
            case "member_expression" | "subscript_expression":
                yield from self.mentioned(node)
                yield from self.member_taken(node)
            case "call_expression" | "new_expression":
                yield from self.called(node)
            case _:
                for origin in sorted(node.origins):
                    yield from self.named(origin)

    def named(self, origin: str) -> Iterator[Danger]:
        if origin in _NAMES:
            tier, reason = _NAMES[origin]
            yield tier, f"{origin.removeprefix('this.')} {reason}"

    def loaded(self, module: str) -> Iterator[Danger]:
        name = _canonical(module)
        if name in _MODULES:
            tier, reason = _MODULES[name]
            yield tier, f"{name} {reason}"
        elif name.startswith(("http:", "https:", "data:", "npm:", "jsr:")):
            yield _HIGH, "loads code from outside"

    def mentioned(self, node: _Node) -> Iterator[Danger]:
        is_name = node.kind not in ("member_expression", "subscript_expression")
        for origin in sorted(node.origins):
            yield from self.named(origin)
            if origin in _MODULES and not (is_name and self.written(node) in self.names):
                yield from self.loaded(origin)
            if is_name and origin in _FOLLOWED and not self.is_followed(node):
                yield _HIGH, f"{origin} is handed on out of sight"

    def is_followed(self, node: _Node) -> bool:
        """Whether what is done with it at this place is understood elsewhere."""
        parent = node.parent
        if parent is None:
            return True
        match parent.kind:
            case "member_expression" | "subscript_expression":
                return node.place == "object"
            case "call_expression":
                return node.place == "function"
            case "variable_declarator" | "assignment_expression":
                target = parent.part("name") or parent.part("left")
                return target is not None and target.kind in ("identifier", "object_pattern")
            case "arguments":
                function = parent.parent and parent.parent.part("function")
                return function is not None and "Reflect.get" in function.origins
        return parent.kind in (
            "unary_expression", "binary_expression", "expression_statement", "parenthesized_expression",
            "ternary_expression", "as_expression", "non_null_expression", "satisfies_expression",
            "await_expression", "export_specifier",
        )  # fmt: skip

    def member_taken(self, node: _Node) -> Iterator[Danger]:
        origins = self.of(node.part("object")) & _FOLLOWED
        name = self.member_name(node)
        if name is None:
            for origin in sorted(origins - {"require"}):
                tier = _CRITICAL if origin in _GLOBAL_OBJECTS else _HIGH
                yield tier, f"a member of {origin} is chosen at run time"
        elif name == "then" and origins:
            yield _HIGH, f"{min(origins)} is handed on out of sight"
        elif name == "constructor" and node.parent:
            # Of a function, that is Function.
            again = node.place == "object" and self.member_name(node.parent) == "constructor"
            if again or node.place in ("function", "constructor"):
                yield _CRITICAL, ".constructor builds a function from text"
            elif node.parent.kind in ("variable_declarator", "assignment_expression"):
                yield _HIGH, ".constructor may build a function from text"

    def called(self, call: _Node) -> Iterator[Danger]:
        function = call.part("function") or call.part("constructor")
        arguments = self.arguments(call)
        if function is None or not arguments:
            return
        first = arguments[0]
        if self.loads(function):
            if first.text is None:
                yield _CRITICAL, "loads a module whose name is only known at run time"
            else:
                yield from self.loaded(first.text)
        for origin in sorted(call.origins):
            yield from self.named(origin)
        if "Reflect.get" in function.origins and len(arguments) > 1 and arguments[1].text is None:
            for origin in sorted(first.origins & _FOLLOWED):
                yield _HIGH, f"a member of {origin} is chosen at run time"
        if function.origins & _TIMERS and first.kind in ("string", "template_string", "binary_expression"):
            yield _CRITICAL, "a timer runs code given as text"
        if function.origins & _OPENERS:
            mode = arguments[1].text if len(arguments) > 1 else "r"
            reads = mode in ("r", "rs")
            yield (
                (_MEDIUM, "opens a file for reading")
                if reads
                else (_HIGH, "opens a file, perhaps for writing")
            )
