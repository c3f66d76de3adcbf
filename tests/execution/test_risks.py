from __future__ import annotations

from typing import Any

import pytest

from belljar.execution.risks import risk_of, tier_to_approve
from belljar.models import Grant, InputFile, Language, Network, RiskTier, RunRequest
from belljar.policy.risk import Assessment

EVIL = b"import os\nos.system('x')\n"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            {"command": ("python3", "main.py"), "files": (InputFile("main.py", EVIL),)}, id="script"
        ),
        pytest.param({"code": "import helper", "files": (InputFile("helper.py", EVIL),)}, id="imported"),
        pytest.param({"code": "1", "inputs": (InputFile("deep/x.py", EVIL),)}, id="input"),
        pytest.param({"command": ("python3", "-"), "stdin": EVIL}, id="stdin"),
        pytest.param({"command": ("/usr/bin/python3.11",), "stdin": EVIL}, id="stdin-by-version"),
        pytest.param({"command": ("bash", "-s"), "stdin": b"rm -rf /"}, id="shell-stdin"),
        pytest.param(
            {"command": ("./run",), "files": (InputFile("run", b"#!/usr/bin/env python3\n" + EVIL),)},
            id="shebang",
        ),
        pytest.param(
            {"command": ("python3", "data.txt"), "files": (InputFile("data.txt", EVIL),)}, id="any-name"
        ),
        pytest.param(
            {
                "command": ("python3", "../../inputs/x"),
                "inputs": (InputFile("x", EVIL),),
                "working_dir": "deep",
            },
            id="from-a-folder",
        ),
        pytest.param(
            {"command": ("python3", "-m", "lib.x"), "files": (InputFile("lib/x.py", EVIL),)}, id="module"
        ),
        pytest.param(
            {"code": "python3 < x", "language": Language.BASH, "files": (InputFile("x", EVIL),)},
            id="redirected",
        ),
        pytest.param(
            {
                "code": "python3 x; bash x; node x",
                "language": Language.BASH,
                "files": (InputFile("x", EVIL),),
            },
            id="in-every-language",
        ),
        pytest.param({"command": ("env", "python3"), "stdin": EVIL}, id="stdin-behind-env"),
        pytest.param({"command": ("timeout", "5", "python3"), "stdin": EVIL}, id="stdin-behind-timeout"),
        pytest.param({"code": "python3", "language": Language.BASH, "stdin": EVIL}, id="stdin-of-a-script"),
        pytest.param({"command": ("python3.11", "-c", EVIL.decode())}, id="version"),
        pytest.param({"command": ("python3", "-Ic", EVIL.decode())}, id="joined-options"),
        pytest.param({"command": ("python3", "-c" + EVIL.decode())}, id="joined-code"),
        pytest.param(
            {"command": ("node", "--eval=require('child_process').execSync('x')")}, id="node-joined"
        ),
    ],
)
def test_the_program_is_read_wherever_it_lies(request_: dict[str, Any]) -> None:
    findings = risk_of(RunRequest(**request_), Grant()).findings
    assert any("os.system" in one.reason or one.tier is RiskTier.CRITICAL for one in findings)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"command": ("python3", "left.py")}, id="file-of-a-session"),
        pytest.param({"command": ("node", "x.txt")}, id="node"),
        pytest.param({"command": ("python3", "-m", "left")}, id="module"),
        pytest.param({"command": ("./left",)}, id="program"),
        pytest.param({"command": ("./ls",)}, id="program-with-a-harmless-name"),
        pytest.param({"command": ("python3",), "stdin_open": True}, id="input-to-come"),
        pytest.param(
            {"command": ("python3", "-i", "x.py"), "files": (InputFile("x.py", b""),)}, id="and-input"
        ),
        pytest.param({"command": ("node", "--require", "./x"), "files": (InputFile("x", b""),)}, id="option"),
        pytest.param(
            {
                "command": ("./x",),
                "files": (InputFile("x", b"#!/bin/bash\npython3 y"), InputFile("y", b"1")),
            },
            id="of-another-script",
        ),
        pytest.param({"command": ("perl", "-e", "1")}, id="perl"),
        pytest.param({"command": ("awk", 'BEGIN{system("x")}')}, id="awk"),
        pytest.param({"code": "cat a | python3", "language": Language.BASH}, id="piped"),
        pytest.param({"code": "echo a | xargs python3", "language": Language.BASH}, id="by-xargs"),
        pytest.param(
            {"language": Language.PYTHON, "inline": (), "args": ("left.py",)}, id="given-to-the-interpreter"
        ),
    ],
)
def test_a_program_that_cannot_be_read_is_high(request_: dict[str, Any]) -> None:
    assert risk_of(RunRequest(**request_), Grant()).tier is RiskTier.HIGH


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"command": ("python3", "x"), "files": (InputFile("x", b"1"),)}, id="file"),
        pytest.param(
            {"command": ("python3", "x.py"), "files": (InputFile("x.py", b"1"),), "stdin": b"{no"}, id="data"
        ),
        pytest.param({"command": ("python3", "-IX", "dev", "-Wd", "-"), "stdin": b"1"}, id="options"),
        pytest.param({"command": ("python3",)}, id="nothing"),
        pytest.param({"command": ("python3", "--version")}, id="version"),
        pytest.param({"command": ("/usr/bin/node", "-e", "1")}, id="text"),
        pytest.param(
            {"command": ("./x",), "files": (InputFile("x", b"#!/usr/bin/python3\n1"),)}, id="shebang"
        ),
    ],
)
def test_a_program_that_was_read_counts_as_what_it_is(request_: dict[str, Any]) -> None:
    assert risk_of(RunRequest(**request_), Grant()).tier is RiskTier.MEDIUM


def test_a_way_to_the_network_is_found() -> None:
    found = risk_of(RunRequest(code="1"), Grant(network=Network(enabled=True)))
    assert (found.tier, [one.reason for one in found.findings]) == (
        RiskTier.MEDIUM,
        ["has a way to the network"],
    )


def test_secrets_that_it_may_use_are_found() -> None:
    grant = Grant(network=Network(enabled=True))
    found = risk_of(RunRequest(code="1"), grant, ("github", "shop")).findings[0]
    assert (found.tier, found.reason) == (RiskTier.HIGH, "may use secrets: github, shop")


def test_files_that_are_no_scripts_are_not_read() -> None:
    files = (InputFile("data.csv", EVIL), InputFile("notes.txt", b"rm -rf /"))
    assert risk_of(RunRequest(code="1", files=files), Grant()).tier is RiskTier.SAFE


def test_more_scripts_than_can_be_read_make_a_person_look() -> None:
    files = tuple(InputFile(f"{n}.py", b"# " + b"x" * 200_000) for n in range(8))
    assert risk_of(RunRequest(code="1", files=files), Grant()).tier is RiskTier.HIGH


def test_a_finding_in_a_file_names_the_file() -> None:
    (finding,) = risk_of(RunRequest(code="1", files=(InputFile("lib/h.py", EVIL),)), Grant()).findings
    assert finding.reason.startswith("lib/h.py: os.system")
    assert finding.line == 2


@pytest.mark.parametrize(
    ("found", "tool", "threshold", "needed"),
    [
        pytest.param(RiskTier.HIGH, RiskTier.SAFE, RiskTier.HIGH, RiskTier.HIGH, id="reached"),
        pytest.param(RiskTier.MEDIUM, RiskTier.HIGH, RiskTier.HIGH, None, id="of the tool alone"),
        pytest.param(RiskTier.HIGH, RiskTier.CRITICAL, RiskTier.HIGH, RiskTier.CRITICAL, id="the higher one"),
        pytest.param(
            RiskTier.SAFE, RiskTier.CRITICAL, RiskTier.CRITICAL, RiskTier.CRITICAL, id="critical tool"
        ),
        pytest.param(RiskTier.CRITICAL, RiskTier.HIGH, None, None, id="no threshold"),
    ],
)
def test_a_person_sees_what_does_enough_and_every_critical_tool(
    found: RiskTier, tool: RiskTier, threshold: RiskTier | None, needed: RiskTier | None
) -> None:
    assert tier_to_approve(Grant(risk=tool, approve_at=threshold), Assessment(found, ())) == needed
