"""Code that wants to pass its tests without being right. Each way to cheat must fail.

The tests ask for something that none of these programs computes. As a control, a judge of the usual kind (one
process, results from its output) is run on the same programs and fooled by those marked so.
"""

from __future__ import annotations

import json

import pytest

from belljar.client import AsyncClient
from belljar.flows.testdriven import Outcome, Pair, Report, Suite, SuiteKind, by, run_tests

HONEST = "def add(a, b): return a + b"

TESTS = """
import unittest
import pytest
from solution import add

def test_plain():
    assert add(1, 2) == 3

def test_parts():
    assert [add(2, 2)] == [4]
    assert not add(1, 1) != 2

class TestCase(unittest.TestCase):
    def test_unittest(self):
        self.assertEqual(add(3, 4), 7)
"""

NAIVE = """
import sys
try:
    from solution import add
    assert add(1, 2) == 3
except Exception as error:
    print("1 failed", error)
    sys.exit(1)
print("1 passed")
"""

ALWAYS_EQUAL = """
class {name}{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda *args: True
"""

IN_THE_SUITE = "import ctypes, os, signal\nsuite = os.getppid()\nlibc = ctypes.CDLL(None, use_errno=True)\n"
ADD_NOTHING = "\ndef add(a, b): return None\n"
FORGED = json.dumps({"secret": "", "event": "end", "id": "test_plain", "verdict": "passed"})

FOOLS_THE_NAIVE = {
    "prints-passed-and-leaves": "print('1 passed', flush=True)\nimport os\nos._exit(0)",
    "leaves-in-the-call": "def add(a, b):\n print('1 passed', flush=True)\n import os\n os._exit(0)",
    "exits-in-the-call": "def add(a, b):\n print('1 passed')\n raise SystemExit(0)",
    "always-equal": ALWAYS_EQUAL.format(name="Any", base="") + "def add(a, b): return Any()",
    "int-that-is-always-equal": ALWAYS_EQUAL.format(name="Any", base="(int)") + "def add(a, b): return Any()",
    "float-that-is-always-equal": ALWAYS_EQUAL.format(name="Any", base="(float)")
    + "def add(a, b): return Any()",
    "class-that-is-always-equal": ALWAYS_EQUAL.format(name="Meta", base="(type)")
    + "class Any(metaclass=Meta): pass\ndef add(a, b): return Any",
    "kills-itself-after-printing": "def add(a, b):\n import os; print('1 passed', flush=True); os._exit(0)",
    "a-thread-that-leaves": "import os, threading, time\n"
    "def add(a, b):\n print('1 passed', flush=True)\n threading.Thread(target=lambda: os._exit(0)).start(); time.sleep(9)",
    "tampers-with-the-callers-frame": "import sys\n"
    "def add(a, b):\n print('1 passed', flush=True)\n sys._getframe(1).f_globals['sys'].exit(0)",
    "patches-the-exit": "import sys, atexit, os\natexit.register(lambda: (print('1 passed', flush=True), os._exit(0)))"
    + ADD_NOTHING,
}

CHEATS = FOOLS_THE_NAIVE | {
    "patches-builtins": "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\n"
    "builtins.isinstance = builtins.all = lambda *a: True\nbuiltins.print = print" + ADD_NOTHING,
    "patches-unittest": "import unittest\nfor name in dir(unittest.TestCase):\n"
    " if name.startswith('assert'): setattr(unittest.TestCase, name, lambda *a, **k: None)" + ADD_NOTHING,
    "brings-its-own-pytest": "import sys, types\nsys.modules['pytest'] = types.ModuleType('pytest')\n"
    "for name, module in list(sys.modules.items()):\n"
    " if 'suite' in name or 'stand_in' in name:\n"
    "  for one in dir(module):\n"
    "   if not one.startswith('__'): setattr(module, one, lambda *a, **k: 'passed')" + ADD_NOTHING,
    "patches-the-judge-in-its-own-memory": "import gc\n"
    "for one in gc.get_objects():\n"
    " if type(one).__name__ in ('Candidate', 'Code', 'Proxy'): one.__dict__.clear()" + ADD_NOTHING,
    "kills-the-judge": IN_THE_SUITE + "os.kill(suite, signal.SIGKILL)" + ADD_NOTHING,
    "kills-the-judge-in-the-call": IN_THE_SUITE + "def add(a, b): os.kill(suite, signal.SIGKILL)",
    "kills-everybody": IN_THE_SUITE + "def add(a, b): os.kill(-1, signal.SIGKILL)",
    "interrupts-the-judge": IN_THE_SUITE + "def add(a, b): os.kill(suite, signal.SIGINT)",
    "terminates-the-judge": IN_THE_SUITE + "def add(a, b): os.kill(suite, signal.SIGTERM)",
    "stops-the-judge": IN_THE_SUITE + "def add(a, b): os.kill(suite, signal.SIGSTOP)",
    "writes-to-the-judges-output": IN_THE_SUITE
    + f"for fd in range(20):\n try: open(f'/proc/{{suite}}/fd/{{fd}}', 'w').write({FORGED!r})\n except OSError: pass"
    + ADD_NOTHING,
    "writes-to-the-guests-output": "for fd in range(20):\n"
    f" try: open(f'/proc/1/fd/{{fd}}', 'w').write({FORGED!r})\n except OSError: pass" + ADD_NOTHING,
    "forges-results-on-its-own-output": f"import os\nos.write(1, {FORGED!r}.encode())" + ADD_NOTHING,
    "forges-results-files": "for name in ('results.json', 'report.xml', '.pytest_cache', 'junit.xml'):\n"
    f" open(name, 'w').write({FORGED!r})" + ADD_NOTHING,
    "writes-the-judges-memory": IN_THE_SUITE
    + "try: open(f'/proc/{suite}/mem', 'r+b').write(b'x')\nexcept OSError: pass"
    + ADD_NOTHING,
    "traces-the-judge": IN_THE_SUITE
    + "libc.ptrace(16, suite, 0, 0); libc.ptrace(0x4206, suite, 0, 0)"
    + ADD_NOTHING,
    "takes-the-judges-descriptors": IN_THE_SUITE
    + f"pidfd = os.pidfd_open(suite)\nfor fd in range(20):\n got = libc.syscall(438, pidfd, fd, 0)\n"
    f" if got >= 0: os.write(got, {FORGED!r}.encode())" + ADD_NOTHING,
    "leaves-the-judge-no-descriptors": IN_THE_SUITE
    + "import resource\nfor what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):\n"
    " resource.prlimit(suite, what, (0, 0))" + ADD_NOTHING,
    "rewrites-the-judge": "import os\nfor folder, _, names in os.walk('/workspace'):\n"
    " for name in names:\n"
    "  try: open(os.path.join(folder, name), 'w').write('print(\"passed\")')\n"
    "  except OSError: pass" + ADD_NOTHING,
    "plants-modules": "for name in ('json', 'doctest', 'traceback', 'unittest', 'pytest', 'asyncio', 'encodings'):\n"
    " open(f'/workspace/work/{name}.py', 'w').write('import os; os._exit(0)')" + ADD_NOTHING,
    "skips": "import unittest\ndef add(a, b): raise unittest.SkipTest('no')",
    "skips-by-name": "class Skipped(Exception): pass\ndef add(a, b): raise Skipped('no')",
    "raises-what-ends-a-session": "def add(a, b): raise KeyboardInterrupt",
    "raises-an-exception-of-all-kinds": "class E(ValueError, KeyError, TypeError, AssertionError): pass\n"
    "def add(a, b): raise E",
    "answers-before-it-is-asked": "import os, json, struct\n"
    "for n in range(50):\n body = json.dumps(['ok', True, []]).encode(); os.write(4, struct.pack('!I', len(body)) + body)"
    + ADD_NOTHING,
    "speaks-the-wire": "import os, json, struct\n"
    "def add(a, b):\n"
    " for m in (['ask', 'call', 0, [], {}], ['ok', ['named', 'x', ['__import__(1)'], [1]], []], ['end'], [], 7):\n"
    "  body = json.dumps(m).encode(); os.write(4, struct.pack('!I', len(body)) + body)",
    "a-frame-that-never-ends": "import os\ndef add(a, b): os.write(4, b'\\xff' * 64)",
    "an-answer-nested-deep": "def add(a, b):\n x = []\n for _ in range(100000): x = [x]\n return x",
    "floods-the-output": "def add(a, b):\n while True: print('passed ' * 10000)",
    "never-answers": "def add(a, b):\n while True: pass",
    "forks-for-ever": "import os\ndef add(a, b):\n while True:\n  try: os.fork()\n  except OSError: pass",
    "answers-twice-by-forking": "import os\ndef add(a, b):\n os.fork()\n return True",
    "takes-all-memory": "def add(a, b):\n x = []\n while True: x.append(bytearray(1 << 24))",
    "claims-another-class": "class Any:\n __class__ = int\n __eq__ = lambda s, o: True\n __index__ = lambda s: 3\n"
    "def add(a, b): return Any()",
    "changes-the-arguments": "def add(a, b):\n a = b = 0\n return a",
    "patches-its-own-equality": "def add(a, b): return 0\nimport operator\noperator.eq = lambda a, b: True",
    "looks-at-the-calls": "calls = []\ndef add(a, b): calls.append((a, b)); return calls",
}


async def judged(client: AsyncClient, code: str, *tests: Suite | Pair) -> Report:
    return await run_tests(by(client), code, tests, timeout_s=1, total_s=2)


async def test_honest_code_passes(client: AsyncClient) -> None:
    report = await run_tests(by(client), HONEST, [Suite(SuiteKind.PYTEST, "test_add.py", TESTS)])
    assert [test.outcome for test in report.tests] == [Outcome.PASSED] * 3, report


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in CHEATS.items()])
async def test_no_test_passes_for_code_that_cheats(client: AsyncClient, code: str) -> None:
    report = await judged(client, code, Suite(SuiteKind.PYTEST, "test_add.py", TESTS))
    assert report.tests
    assert not {Outcome.PASSED, Outcome.SKIPPED} & {test.outcome for test in report.tests}, report


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in FOOLS_THE_NAIVE.items()])
async def test_a_judge_of_the_usual_kind_is_fooled(client: AsyncClient, code: str) -> None:
    result = await client.run(NAIVE, files={"solution.py": code}, timeout_s=25)
    assert "1 passed" in result.stdout
    assert result.exit_code == 0


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("print('1 passed')", id="says-so"),
        pytest.param("import os; os._exit(0)", id="leaves"),
        pytest.param("print('6'); raise SystemExit(3)", id="right-but-fails"),
        pytest.param("print('6'); import os; os.kill(os.getpid(), 9)", id="right-but-killed"),
        pytest.param("print('6'); print('6' * 3_000_000)", id="too-much"),
        pytest.param("for n in range(100): print(n)", id="says-everything"),
        pytest.param("import time; print('6', flush=True); time.sleep(9)", id="right-but-does-not-end"),
    ],
)
async def test_a_pair_passes_for_the_right_output_only(client: AsyncClient, code: str) -> None:
    report = await judged(client, code, Pair("sum", "1 2 3", "6"))
    assert not report.all_passed


SEARCH = """
import gc, os, re, sys
def looked():
    for place in ('/workspace', '/tmp', '/dev/shm', '/proc'):
        for folder, _, names in os.walk(place):
            for name in names:
                if name in ('kmsg', 'kcore'): continue
                try:
                    with open(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK), 'rb') as file:
                        yield file.read(1 << 20) or b''
                except (OSError, ValueError):
                    pass
    yield repr([one for one in gc.get_objects() if type(one) in (str, dict, list)]).encode()
    for line in open('/proc/self/maps'):
        start, end = (int(x, 16) for x in line.split()[0].split('-'))
        try:
            with open('/proc/self/mem', 'rb') as memory:
                memory.seek(start)
                while start < end and (chunk := memory.read(min(1 << 20, end - start))):
                    start += len(chunk); yield chunk
        except (OSError, ValueError, OverflowError):
            pass
def add(*_):
    prefix = b'EXPECTED' + b'-'
    for text in looked():
        for found in re.findall(prefix + rb'[0-9]+', text):
            return found.decode()
if __name__ == '__main__':
    print(add())
"""


async def test_what_is_expected_is_nowhere_to_be_found(client: AsyncClient) -> None:
    test = (
        "import solution\ndef test_it(): assert solution.add(1, 2) == 'EXPECTED-' + '4711'\n# EXPECTED-4711"
    )
    report = await run_tests(
        by(client),
        SEARCH,
        [Suite(SuiteKind.PYTEST, "test_it.py", test), Pair("p", "", "EXPECTED-4711")],
        timeout_s=25,
    )
    assert [test.outcome for test in report.tests] == [Outcome.FAILED] * 2, report
    assert "'EXPECTED-" not in report.tests[0].output
    assert "printed 'None" in report.tests[0].message, "the search itself ran to its end"


NUMBERS = """
import math, unittest, pytest
from solution import add

def test_difference(): assert abs(add(0.1, 0.2) - 0.3) < 1e-9
def test_bounds(): assert 0.29 < add(0.1, 0.2) < 0.31
def test_close(): assert math.isclose(add(0.1, 0.2), 0.3)
def test_approx(): assert add(0.1, 0.2) == pytest.approx(0.3)
def test_parts(): assert sum([add(0.1, 0.2), -0.3]) == pytest.approx(0)

class Case(unittest.TestCase):
    def test_almost(self): self.assertAlmostEqual(add(0.1, 0.2), 0.3)
    def test_less(self): self.assertLess(add(0.1, 0.2), 0.31)
"""


async def test_numbers_are_compared_as_numbers(client: AsyncClient) -> None:
    report = await run_tests(by(client), HONEST, [Suite(SuiteKind.PYTEST, "test_add.py", NUMBERS)])
    assert report.all_passed, report.failures


async def test_an_object_cannot_pretend_to_be_the_number_that_is_expected(client: AsyncClient) -> None:
    code = """
class Any:
    def __sub__(self, other): return {result}
    __rsub__ = __add__ = __radd__ = __sub__
    def __abs__(self): return 0.0
    __float__ = __int__ = __round__ = __neg__ = __abs__
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __eq__ = __lt__
def add(a, b): return Any()
"""
    for result in ("0.0", "self", "Any()"):
        report = await judged(
            client, code.format(result=result), Suite(SuiteKind.PYTEST, "test_add.py", NUMBERS)
        )
        assert Outcome.PASSED not in {test.outcome for test in report.tests}, report


async def test_a_star_import_takes_nothing_for_pythons_own(client: AsyncClient) -> None:
    code = (
        "import sys as math\n"
        "class pytest:\n def approx(x): return 0\n"
        "def abs(x): return 0\ndef len(x): return 3\ndef print(x): __builtins__['print'](3)\n"
        "def add(a, b): return 0"
    )
    test = "import math, pytest\nfrom solution import *\n" + (
        "def test_a(): assert abs(add(1, 2) - 3) < 1\n"
        "def test_b(): assert add(1, 2) == pytest.approx(3)\n"
        "def test_c(): assert len([add(1, 2)] * add(1, 2)) == 3\n"
        "def test_d(): assert math.isclose(add(1, 2), 3)\n"
    )
    text = ">>> print(add(1, 2))\n3\n>>> print(abs(add(1, 2) - 3) == 0)\nTrue\n"
    suites = [Suite(SuiteKind.PYTEST, "t.py", test), Suite(SuiteKind.DOCTEST, "t.txt", text)]
    report = await run_tests(by(client), code, suites)
    assert len(report.tests) == 6
    assert Outcome.PASSED not in {test.outcome for test in report.tests}, report


async def test_a_function_of_a_test_can_be_called_and_nothing_else(client: AsyncClient) -> None:
    code = (
        "def apply(f):\n"
        " found = [name for name in ('__globals__', '__code__', '__closure__') if 'EXPECTED-1' in repr(getattr(f, name))]\n"
        " return [f(2), f(3), found]"
    )
    test = (
        "import solution\nsecret = 'EXPECTED-1'\n"
        "def test_it():\n def double(x):\n  secret\n  return 2 * x\n assert solution.apply(double) == [4, 6, []]"
    )
    report = await run_tests(by(client), code, [Suite(SuiteKind.PYTEST, "test_it.py", test)])
    assert report.all_passed, report


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "import sys\nsys.displayhook = lambda x: print(3)\ndef add(a, b): return 0", id="displayhook"
        ),
        pytest.param(
            "import doctest\ndoctest.OutputChecker.check_output = lambda *a: True\ndef add(a, b): pass",
            id="doctest",
        ),
        pytest.param(CHEATS["always-equal"], id="always-equal"),
        pytest.param(CHEATS["leaves-in-the-call"], id="leaves"),
    ],
)
async def test_a_doctest_is_not_fooled(client: AsyncClient, code: str) -> None:
    text = ">>> add(1, 2) == 3\nTrue\n>>> add(1, 2)\n3\n"
    report = await run_tests(by(client), code, [Suite(SuiteKind.DOCTEST, "add.txt", text)])
    assert Outcome.PASSED not in {test.outcome for test in report.tests}, report
    assert len(report.tests) == 2
