from __future__ import annotations

import threading
import warnings

import pytest
from tests.policy.reading import assess

from belljar.models import Language, RiskTier
from belljar.policy.risk import Assessment

IMPORT_OS = "import os\n"


def read(code: str) -> Assessment:
    return assess(code, Language.PYTHON)


# Every pattern of seed 003 §2.2, with its tier.
SEED = [
    ("__import__('os')", RiskTier.CRITICAL),
    ("eval('1')", RiskTier.CRITICAL),
    ("exec('1')", RiskTier.CRITICAL),
    ("compile('1', '', 'eval')", RiskTier.CRITICAL),
    ("import subprocess", RiskTier.CRITICAL),
    ("import os; os.system('ls')", RiskTier.CRITICAL),
    ("os.system('ls')", RiskTier.CRITICAL),
    ("open('x', 'w')", RiskTier.HIGH),
    ("requests.get('x')", RiskTier.HIGH),
    ("import requests", RiskTier.HIGH),
    ("import urllib.request", RiskTier.HIGH),
    ("import socket", RiskTier.HIGH),
    ("open('x', 'r')", RiskTier.MEDIUM),
    ("import json; json.load(f)", RiskTier.MEDIUM),
    ("import pickle; pickle.dumps(x)", RiskTier.MEDIUM),
    ("print('hello')", RiskTier.SAFE),
]


@pytest.mark.parametrize(("code", "tier"), SEED)
def test_patterns_of_the_seed_have_its_tiers(code: str, tier: RiskTier) -> None:
    assert read(code).tier is tier


@pytest.mark.parametrize(
    "code",
    [
        "e = eval\ne('1')", "a, b = eval, 1", "map(eval, x)", "[eval][0]('1')", "@exec\ndef f(): pass", "f(key=exec)",
        "import builtins as b; b.exec('1')", "from builtins import eval as e", "getattr(__builtins__, 'ev' + 'al')('1')",
        "__builtins__['eval']('1')", "__builtins__.eval('1')", "vars(__builtins__)['eval']", "globals()['__builtins__']['ex' + 'ec']",
        "globals().get('__builtins__').eval", "getattr(__builtins__, f'{\"ev\"}al')", "getattr(__builtins__, ''.join(['ev', 'al']))",
        "getattr(__builtins__, 'lave'[::-1])", "getattr(__builtins__, chr(101) + 'val')", "n = 'eval'\ngetattr(__builtins__, n)",
        "getattr(__builtins__, name)", "__builtins__[name]", "ｅｖａｌ('1')", "(lambda e=eval: e)()('1')",
        IMPORT_OS + "os.popen('x')", IMPORT_OS + "os.execvp('x', [])", IMPORT_OS + "os.spawnl(0, 'x')", IMPORT_OS + "o = os\no.system('x')",
        "import os as o; o.system('x')", "from os import system as s; s('x')", "from os import *\nsystem('x')", "import posix; posix.system('x')",
        IMPORT_OS + "run = os.system", IMPORT_OS + "getattr(os, 'sys' + 'tem')", IMPORT_OS + "os.__dict__['system']",
        IMPORT_OS + "vars(os)['system']", IMPORT_OS + "(os if x else y).system", IMPORT_OS + "(o := os).system", IMPORT_OS + "(x or os).system",
        "import operator, os; operator.attrgetter('system')(os)", "import sys; sys.modules['os'].system", "import shutil; shutil.os.system",
        "import random; random._os.system", "from shutil import os as o; o.system", "class A:\n  import os\nA.os.system('x')",
        "__import__('os').system('x')", "__import__('subprocess')", "__import__(name)", "i = __import__\ni('math')",
        "import importlib; importlib.import_module('subprocess').run([])", "import importlib; importlib.import_module(name)",
        "from importlib import import_module as i; i('os')", "import pty", "import ctypes", "import subprocess as s", "from subprocess import run",
        "import asyncio; asyncio.create_subprocess_shell('x')", "().__class__.__base__.__subclasses__()", "f.__globals__", "getattr(f, '__code__')",
        "import sys; sys._getframe()", "import runpy", "spec.loader.exec_module(m)", "import types; types.FunctionType(c, {})",
    ],
)  # fmt: skip
def test_running_code_or_programs_is_critical(code: str) -> None:
    assert read(code).tier is RiskTier.CRITICAL


@pytest.mark.parametrize(
    "code",
    [
        "open('x', 'a')", "open('x', 'x')", "open('x', 'r+')", "open('x', mode='wb')", "open(file='x', mode='w')", "open('x', mode)",
        "open(*a)", "open('x', **k)", "o = open\no('x', 'w')", "f(open)", "import io; io.open('x', 'w')", "import gzip; gzip.open('x', 'wb')",
        "from pathlib import Path; Path('x').write_text('y')", "p.write_bytes(b'')", "p.open('w')", "p.open(mode='a')", "p.unlink()",
        "import shutil; shutil.rmtree('x')", IMPORT_OS + "os.remove('x')", IMPORT_OS + "os.open('x', 1)", "df.to_csv('x')",
        "import httpx", "import aiohttp", "import http.client", "import ftplib", "import smtplib", "from urllib import request",
        "from urllib.request import urlopen", "import asyncio; asyncio.open_connection('x', 1)", "import pickle; pickle.loads(x)",
        "import yaml; yaml.load(x)", IMPORT_OS + "os.fork()", IMPORT_OS + "os.kill(1, 9)", IMPORT_OS + "f([os])", IMPORT_OS + "getattr(os, name)",
        IMPORT_OS + "n = 'path'\ngetattr(os, n)\nn = input()", "# coding: utf-7\n", "#!/x\n# -*- coding: rot13 -*-", "def f(:",
    ],
)  # fmt: skip
def test_writing_the_network_and_the_unreadable_are_high(code: str) -> None:
    assert read(code).tier is RiskTier.HIGH


@pytest.mark.parametrize(
    "code",
    [
        "open('x')", "open('x', 'rb')", "open('x', encoding='utf-8')", "with open('x') as f: pass", "p.read_text()", "p.open()", "json.loads(x)",
        "import yaml; yaml.safe_load(x)", "import multiprocessing", "__import__('math')", "import sqlite3; sqlite3.connect('x')",
    ],
)  # fmt: skip
def test_reading_is_medium(code: str) -> None:
    assert read(code).tier is RiskTier.MEDIUM


@pytest.mark.parametrize(
    "code", ["os.listdir('.')", "import os; os.environ['x']", "p.iterdir()", "import glob; glob.glob('*')"]
)
def test_looking_around_is_low(code: str) -> None:
    assert read(code).tier is RiskTier.LOW


@pytest.mark.parametrize(
    "code",
    [
        "# eval(x) and os.system(x)", "x = 'eval(1); import subprocess'", '"""os.system"""', "import re; re.compile('x')", "model.eval()", "df.eval('a')",
        IMPORT_OS + "os.path.join('a', 'b')", IMPORT_OS + "hasattr(os, 'fork')", "from urllib.parse import quote", "import json; json.dumps(1)",
        "def f(code, commands): return code.x", "self.types; f(self.types)", "import math; print(math.pi)", "f'{x!r:>{width}}'", "x: 'eval' = 1",
        "class A:\n    def open(self): ...\n    def eval(self): ...", "for sh in (1, 2): sh.real", "# coding: utf-8\nx = 1", r"x = '\d'",
    ],
)  # fmt: skip
def test_ordinary_code_is_safe(code: str) -> None:
    assert read(code).findings == ()


def test_syntax_error_names_its_line() -> None:
    (finding,) = read("x = 1\ny = 2\ndef (:\n").findings
    assert finding.line == 3


def test_alias_is_found_where_it_is_used() -> None:
    findings = read("import os as o\n\n\no.system('x')\n").findings
    assert [(finding.reason, finding.line) for finding in findings] == [("os.system starts programs", 4)]


def test_names_assigned_later_are_known_before() -> None:
    assert read("def f():\n    m.system('x')\nimport os\nn = os\nm = n\n").tier is RiskTier.CRITICAL


def test_odd_escapes_neither_warn_nor_fail() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(r"x = '\d'").tier is RiskTier.SAFE


def test_threads_leave_the_warning_filters_alone() -> None:
    before = list(warnings.filters)
    threads = [threading.Thread(target=read, args=(r"x = '\d'",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
