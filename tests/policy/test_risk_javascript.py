from __future__ import annotations

import pytest
from tests.policy.reading import assess

from belljar.models import Language, RiskTier

FS = "const fs = require('fs');"


def tier(code: str, language: Language = Language.JAVASCRIPT) -> RiskTier:
    return assess(code, language).tier


@pytest.mark.parametrize("language", [Language.JAVASCRIPT, Language.TYPESCRIPT])
@pytest.mark.parametrize(
    "code",
    [
        "eval('1')", "const e = eval; e('1')", "(0, eval)('1')", "globalThis.eval('1')", "window['ev' + 'al']", "global[name]", "`${eval}`",
        "\\u0065val('1')", "self['\\x65val']", "const {eval: e} = globalThis", "Reflect.get(globalThis, 'eval')", "this.eval('1')", "eval?.('1')",
        "new Function('x')", "Function('x')()", "[].filter.constructor('x')()", "x.constructor.constructor('x')", "x['constructor']('y')",
        "setTimeout('x', 1)", "setInterval(`x`)", "global[String.fromCharCode(101, 118, 97, 108)]",
        "require('child_process').exec('x')", "const {exec: e} = require('node:child_process'); e('x')", "import {spawn} from 'child_process'",
        "import * as cp from 'child_process'", "import cp from 'node:child_process'", "export * from 'child_process'", "await import('child_process')",
        "let r = require; r('child_process')", "process.getBuiltinModule('child_process')", "require(name)", "import(name)", "require('child_' + name)",
        "require('vm')", "process.binding('fs')", "process.dlopen(m, 'x')", "child_process.exec('x')", "new Deno.Command('x')", "Bun.spawn(['x'])",
        "// c\u2028eval(1)",
    ],
)  # fmt: skip
def test_running_code_or_programs_is_critical(code: str, language: Language) -> None:
    assert tier(code, language) is RiskTier.CRITICAL


@pytest.mark.parametrize(
    "code",
    [
        FS + "fs.writeFileSync('a', 'b')", FS + "fs['write' + 'File']('a')", FS + "fs[name]()", FS + "f(fs)", "const {writeFile: w} = require('fs').promises",
        "import {writeFile} from 'fs/promises'", "import {rm as r} from 'node:fs'", "import fs from 'fs'; fs.unlinkSync('a')", FS + "fs.openSync('a', 'w')",
        "import('fs').then(m => m.writeFileSync('a', 'b'))", "const w = require('fs').createWriteStream('a')", FS + "const {rmSync = 1} = fs",
        "fetch('x')", "const f = fetch", "new WebSocket('x')", "require('http')", "import https from 'https'", "require('net')", "require('axios')",
        "import 'https://example.org/x.js'", "new Worker('x')", "require('worker_threads')", "process.kill(1)", "module.require", "if (", "a\0b",
    ],
)  # fmt: skip
def test_writing_the_network_and_the_unreadable_are_high(code: str) -> None:
    assert tier(code) is RiskTier.HIGH


@pytest.mark.parametrize(
    "code",
    [
        FS + "fs.readFileSync('a')",
        FS + "fs.openSync('a')",
        FS + "fs.openSync('a', 'r')",
        "WebAssembly.compile(b)",
    ],
)
def test_reading_is_medium(code: str) -> None:
    assert tier(code) is RiskTier.MEDIUM


@pytest.mark.parametrize("code", [FS + "fs.readdirSync('.')", "process.env.HOME", FS + "fs.mkdirSync('a')"])
def test_looking_around_is_low(code: str) -> None:
    assert tier(code) is RiskTier.LOW


@pytest.mark.parametrize(
    "code",
    [
        "console.log('eval(1)')", "// require('child_process')", "/* eval */ 1", "const re = /eval\\(1\\)/", "`fetch('x')`", "class A { fetch() {} eval() {} }",
        "x.constructor.name", "setTimeout(() => 1, 5)", "const path = require('path')", "import x from './y.js'", "function f(fs) { return fs.x }",
        "#!/usr/bin/env node\nconst a = {b: 1}; a.b", "JSON.parse(x)", FS, "require.main === module", "typeof require", "const {a, ...b} = c",
    ],
)  # fmt: skip
def test_ordinary_code_is_safe(code: str) -> None:
    assert assess(code, Language.JAVASCRIPT).findings == ()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(
            "import fs = require('fs'); fs.writeFileSync('a', 'b')", RiskTier.HIGH, id="import-require"
        ),
        pytest.param("(eval as any)('x')", RiskTier.CRITICAL, id="as"),
        pytest.param("let e = <any>eval", RiskTier.CRITICAL, id="assertion"),
        pytest.param("eval!('x')", RiskTier.CRITICAL, id="non-null"),
        pytest.param("const x: number = 1; interface A { eval: string }", RiskTier.SAFE, id="types"),
        pytest.param("const a = <div>{x}</div>", RiskTier.SAFE, id="tsx"),
    ],
)
def test_typescript_is_read_as_such(code: str, expected: RiskTier) -> None:
    assert tier(code, Language.TYPESCRIPT) is expected


def test_unreadable_place_names_its_line() -> None:
    (finding,) = assess("let a = 1;\nlet b = 2;\nlet = = ;\n", Language.JAVASCRIPT).findings
    assert finding.line == 3


def test_findings_beside_an_error_are_kept() -> None:
    assert tier("eval('1');\nlet = = ;") is RiskTier.CRITICAL


def test_names_assigned_later_are_known_before() -> None:
    assert (
        tier("function f() { m.writeFileSync('a') }\nconst n = require('fs');\nconst m = n;") is RiskTier.HIGH
    )
