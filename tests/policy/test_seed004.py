"""The policy of seed 004 §3.2 and §3.3, exactly as written there, and what it grants to whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import PolicyEscalation, ToolNotAllowed
from belljar.models import Grant, Limits, Network, NetworkRules, PatternRules, RiskTier
from belljar.policy.decisions import PolicySet, decide
from belljar.policy.files import load

SETTINGS = NetworkRules(
    "settings",
    hosts=("api.openai.com", "api.anthropic.com", "*.githubusercontent.com"),
    addresses=(),
    denied_hosts=("*.internal.*", "localhost"),
    denied_ports=(22, 3306, 5432, 6379),
    denied_addresses=("127.0.0.0/8", "10.0.0.0/8", "192.168.0.0/16"),
)
CLOSED = Network(False, (SETTINGS,))
BROWSER = NetworkRules(
    "tool:browser_automation", hosts=("*.example.com",), denied_hosts=("*.internal.company.com",)
)
FILES = PatternRules(
    "tool:file_read", allow=("/workspace/**",), deny=("/workspace/.env", "/workspace/**/*.key")
)
COMMANDS = PatternRules(
    "tool:shell_exec",
    allow=("ls", "cat", "grep", "find", "python", "node"),
    deny=("rm -rf", "sudo", "curl", "wget", "nc", "ssh"),
)
CODE = frozenset({"python", "javascript", "typescript"})

CODE_RUN = Grant(
    limits=Limits(memory_mb=1024, timeout_s=120), network=CLOSED, languages=CODE, risk=RiskTier.HIGH
)
SHELL_EXEC = Grant(limits=Limits(timeout_s=60), network=CLOSED, commands=(COMMANDS,), risk=RiskTier.HIGH)
FILE_READ = Grant(network=CLOSED, sandboxed=False, paths=(FILES,), risk=RiskTier.LOW)
FILE_WRITE = Grant(network=CLOSED, risk=RiskTier.MEDIUM)
BROWSE = Grant(network=Network(True, (SETTINGS, BROWSER)), risk=RiskTier.HIGH)


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return load(Path(__file__).with_name("seed004.yaml"))


@pytest.mark.parametrize(
    ("role", "tool", "grant"),
    [
        pytest.param(None, None, Grant(network=CLOSED), id="nobody"),
        pytest.param(None, "file_read", FILE_READ, id="file_read"),
        pytest.param(None, "shell_exec", SHELL_EXEC, id="shell_exec"),
        pytest.param(None, "code_run", CODE_RUN, id="code_run"),
        pytest.param(None, "browser_automation", BROWSE, id="browser_automation"),
        pytest.param("code_assistant", None, Grant(network=CLOSED), id="code_assistant"),
        pytest.param("code_assistant", "file_read", FILE_READ, id="code_assistant-file_read"),
        pytest.param("code_assistant", "file_write", FILE_WRITE, id="code_assistant-file_write"),
        pytest.param("code_assistant", "code_run", CODE_RUN, id="code_assistant-code_run"),
        pytest.param("code_assistant", "shell_exec", SHELL_EXEC, id="code_assistant-shell_exec"),
        pytest.param(
            "data_analyst", None, Grant(limits=Limits(memory_mb=2048), network=CLOSED), id="data_analyst"
        ),
        pytest.param(
            "data_analyst",
            "file_read",
            Grant(
                limits=Limits(memory_mb=2048),
                network=CLOSED,
                sandboxed=False,
                paths=(FILES,),
                risk=RiskTier.LOW,
            ),
            id="data_analyst-file_read",
        ),
        pytest.param("data_analyst", "code_run", CODE_RUN, id="data_analyst-code_run"),
        pytest.param("web_scraper", None, Grant(network=Network(True, (SETTINGS,))), id="web_scraper"),
        pytest.param("web_scraper", "browser_automation", BROWSE, id="web_scraper-browser_automation"),
    ],
)
def test_role_and_tool_get_exactly_this(
    policies: PolicySet, role: str | None, tool: str | None, grant: Grant
) -> None:
    assert decide(policies, role=role, tool=tool).grant == grant


@pytest.mark.parametrize(
    ("role", "tool"),
    [
        ("code_assistant", "browser_automation"),
        ("code_assistant", "search"),
        ("data_analyst", "shell_exec"),
        ("data_analyst", "file_write"),
        ("web_scraper", "code_run"),
        ("web_scraper", "file_read"),
    ],
)
def test_role_may_not_use_what_it_does_not_list(policies: PolicySet, role: str, tool: str) -> None:
    with pytest.raises(ToolNotAllowed, match=f"`{role}` may not use tool `{tool}`"):
        decide(policies, role=role, tool=tool)


@pytest.mark.parametrize(
    ("role", "tool", "asked", "ceiling", "layer"),
    [
        pytest.param(None, None, 513, 512, "settings", id="nobody"),
        pytest.param("code_assistant", "code_run", 1025, 1024, "tool:code_run", id="tool"),
        pytest.param("data_analyst", None, 2049, 2048, "role:data_analyst", id="role"),
        pytest.param("data_analyst", "code_run", 1025, 1024, "tool:code_run", id="narrower-of-both"),
    ],
)
def test_nobody_may_ask_for_more_memory(
    policies: PolicySet, role: str | None, tool: str | None, asked: int, ceiling: int, layer: str
) -> None:
    overrides = {"limits.memory_mb": asked}
    with pytest.raises(PolicyEscalation) as caught:
        decide(policies, role=role, tool=tool, overrides=overrides)
    assert (caught.value.ceiling, caught.value.layer) == (ceiling, layer)


def test_every_field_is_explained_by_the_layer_that_set_it(policies: PolicySet) -> None:
    decision = decide(policies, role="data_analyst", tool="code_run", overrides={"pids": 64})
    layers = {row.field: row.layer for row in decision.explain() if row.layer != "system"}
    assert layers == {
        "limits.timeout_s": "tool:code_run",
        "limits.memory_mb": "tool:code_run",
        "limits.cpu_cores": "settings",
        "limits.pids": "request",
        "network.enabled": "settings",
        "network.rules": "settings",
        "languages": "tool:code_run",
        "sandboxed": "tool:code_run",
        "risk": "tool:code_run",
    }
