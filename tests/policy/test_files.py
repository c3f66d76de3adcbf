from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from belljar.errors import BadPolicy, ToolNotAllowed
from belljar.models import NetworkRules, PatternRules, RiskTier
from belljar.policy.decisions import decide
from belljar.policy.files import KEYS, load, loads
from belljar.policy.layers import OFF, Policy
from belljar.policy.limits import BY_WIRE_NAME, LIMITS

SEED004 = Path(__file__).with_name("seed004.yaml").read_text("utf-8")
DOC = Path(__file__).parents[2] / "docs" / "policy.md"


def default(words: str) -> Policy:
    return loads(f"policies:\n  default: {{{words}}}\n").settings


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        pytest.param("max_execution_time: 1m30s", Policy(timeout_s=90.0), id="duration"),
        pytest.param("max_execution_time: 45", Policy(timeout_s=45.0), id="seconds"),
        pytest.param("max_idle_time: 0", Policy(idle_timeout_s=0.0), id="no-idle-limit"),
        pytest.param("max_memory: 1.5GB", Policy(memory_mb=1536), id="size"),
        pytest.param("max_stdout: 64KB", Policy(stdout_kb=64), id="size-in-kb"),
        pytest.param("max_cpu: 0.5", Policy(cpu_cores=0.5), id="cores"),
        pytest.param("max_pids: 32", Policy(pids=32), id="count"),
        pytest.param("approve_code_at: off", Policy(approve_at=OFF), id="off-is-a-word"),
        pytest.param(
            "supported_languages: [shell]", Policy(languages=frozenset({"bash"})), id="shell-is-bash"
        ),
        pytest.param("supported_languages: []", Policy(languages=frozenset()), id="empty-list-is-none"),
        pytest.param("images: [a:1]", Policy(images=frozenset({"a:1"})), id="images"),
        pytest.param("filesystem_access: workspace_only", Policy(), id="filesystem"),
        pytest.param("allowed_paths: []", Policy(paths=(PatternRules("settings", ()),)), id="no-path"),
        pytest.param(
            "allowed_commands: [true, 7]",
            Policy(commands=(PatternRules("settings", ("true", "7")),)),
            id="commands-that-look-like-values",
        ),
    ],
)
def test_word_of_the_default_block_is_understood(words: str, policy: Policy) -> None:
    assert default(words) == policy


@pytest.mark.parametrize(("key", "name"), [(limit.key, limit.name) for limit in LIMITS])
def test_every_limit_has_a_key(key: str, name: str) -> None:
    unit = {"MB": "MB", "KB": "KB", "s": "s"}
    value = next((f"7{unit[end]}" for end in unit if name.endswith(f"_{end.lower()}")), "7")
    assert default(f"{key}: {value}").stated() == {name: 7}


POLICY = """\
policies:
  default:
    max_memory: 512MB
  tools:
    fetch:
      risk_level: high
      network_access: true
  agent_roles:
    reader:
      tools: [file_read]
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        pytest.param("policies", "polices", 1, "unknown key `polices`; did you mean `policies`?", id="top"),
        pytest.param("default", "defaults", 2, "did you mean `default`?", id="block"),
        pytest.param("network_access", "netwrok_access", 7, "did you mean `network_access`?", id="key"),
        pytest.param("max_memory: 512MB", "memory_mb: 512", 3, "it is `max_memory`", id="name-of-the-wire"),
        pytest.param("512MB", "512", 3, "say the unit", id="size-without-unit"),
        pytest.param("512MB", "512QB", 3, "policies.default.max_memory: `512QB` is not a size", id="unit"),
        pytest.param("512MB", "0MB", 3, "at least 1 MB", id="zero"),
        pytest.param("512MB", "-1MB", 3, "not a size", id="negative"),
        pytest.param("512MB", "100KB", 3, "whole number of MB", id="part-of-a-megabyte"),
        pytest.param("512MB", "true", 3, "`true` is not a size", id="boolean-for-size"),
        pytest.param("512MB", "", 3, "found nothing", id="nothing"),
        pytest.param("512MB", "[512MB]", 3, "expected a word, found a list", id="list-for-word"),
        pytest.param("max_memory: 512MB", "max_cpu: .inf", 3, "not a number", id="infinite"),
        pytest.param("max_memory: 512MB", "max_cpu: 1e309", 3, "1e309", id="huge"),
        pytest.param("max_memory: 512MB", "max_pids: 1.5", 3, "whole number", id="half-a-process"),
        pytest.param("max_memory: 512MB", "max_execution_time: 0s", 3, "at least", id="no-time"),
        pytest.param("max_memory: 512MB", "max_tmp_size: 0MB", 3, "at least", id="no-limit-by-zero"),
        pytest.param("512MB", "512MB\n    max_memory: 1GB", 4, "line 3", id="duplicate"),
        pytest.param("true", "yes", 7, "`yes` is text here; write true or false", id="yes"),
        pytest.param("true", "on", 7, "write true or false", id="on"),
        pytest.param("true", "True", 7, "write true or false", id="capital-true"),
        pytest.param("true", '"true"', 7, "without quotes", id="quoted-true"),
        pytest.param("true", "1", 7, "expected true or false, found `1`", id="number-for-boolean"),
        pytest.param("high", "hihg", 6, "did you mean `high`?", id="tier"),
        pytest.param("risk_level: high", "max_pids: 1", 5, "needs a `risk_level`", id="no-tier"),
        pytest.param("fetch", "Fetch", 5, "not a name", id="capital-in-name"),
        pytest.param("fetch", '"fetch "', 5, "not a name", id="space-in-name"),
        pytest.param("fetch", "ｆｅｔｃｈ", 5, "not a name", id="full-width-name"),
        pytest.param(
            "network_access: true", "sandbox_enabled: false", 7, "outside a jar", id="no-jar-for-high"
        ),
        pytest.param("max_memory: 512MB", "sandbox_enabled: false", 3, "outside a jar", id="no-jar-for-all"),
        pytest.param("max_memory: 512MB", "filesystem_access: host", 3, "workspace_only", id="filesystem"),
        pytest.param("max_memory: 512MB", "allowed_domains: []", 3, "in `network`", id="domains-for-all"),
        pytest.param("max_memory: 512MB", "allowed_paths: [/etc]", 3, "`/workspace`", id="path-outside"),
        pytest.param("max_memory: 512MB", "denied_commands: ['']", 3, "is empty", id="empty-command"),
        pytest.param("max_memory: 512MB", 'denied_commands: ["a\\tb"]', 3, "printed", id="control-character"),
        pytest.param("network_access: true", "allowed_domains: [1.2.3.4]", 7, "`ips`", id="address"),
        pytest.param("[file_read]", "[file_raed]", 10, "did you mean `file_read`?", id="tool-of-role"),
        pytest.param("[file_read]", "file_read", 10, "expected a list", id="tools-as-word"),
        pytest.param("[file_read]", "", 10, "expected a list, found nothing", id="tools-without-value"),
        pytest.param("reader:", "default:", 9, "the name of `policies.default`", id="role-named-default"),
        pytest.param("tools: [file_read]", "inherits: writer", 10, "which is no role", id="no-parent"),
        pytest.param(
            "tools: [file_read]", "inherits: raeder", 10, "did you mean `reader`?", id="near-parent"
        ),
        pytest.param("tools: [file_read]", "inherits: reader", 10, "reader → reader", id="own-parent"),
        pytest.param("tools: [file_read]", "risk_level: low", 10, "unknown key", id="tier-of-a-role"),
        pytest.param("512MB", "&a 512MB", 3, "anchor", id="anchor"),
        pytest.param("512MB", "*a", 3, "alias", id="alias"),
        pytest.param("512MB", "!!str 512MB", 3, "tag", id="tag"),
        pytest.param("max_memory: 512MB", "<<: {}", 3, "merge", id="merge-key"),
        pytest.param("  agent_roles:", "---\n  agent_roles:", 8, "document", id="second-document"),
        pytest.param("    fetch", "\tfetch", 5, "YAML", id="tab"),
    ],
)
def test_malformed_policy_is_refused_with_its_line(old: str, new: str, line: int, complaint: str) -> None:
    assert old in POLICY
    with pytest.raises(BadPolicy) as caught:
        loads(POLICY.replace(old, new), name="p.yaml")
    assert caught.value.message.startswith(f"p.yaml:{line}: ")
    assert complaint in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("# nothing\n", id="comment"),
        pytest.param("null", id="null"),
        pytest.param("policies", id="word"),
        pytest.param("[]", id="list"),
        pytest.param("policies:", id="empty-block"),
        pytest.param("policies: {default: }", id="empty-default"),
        pytest.param("policies: {agent_roles: {a: }}", id="empty-role"),
        pytest.param("network: {default: bridge}", id="open-by-default"),
        pytest.param("network: {allowlist: {enabled: true}}", id="list-without-domains"),
        pytest.param("network: {allowlist: {domains: ['http://x']}}", id="scheme"),
        pytest.param("network: {denylist: {ports: [0]}}", id="port"),
        pytest.param("network: {denylist: {enabled: no, domains: []}}", id="no"),
        pytest.param("a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]", id="alias-bomb"),
        pytest.param("[" * 100_000, id="deep-lists"),
        pytest.param("{a: " * 50_000, id="deep-blocks"),
        pytest.param("- " * 50_000, id="deep-items"),
        pytest.param('"\\Uffffffff"', id="escape-out-of-range"),
        pytest.param("a: \x07", id="bell"),
        pytest.param("? [a]\n: b", id="list-as-key"),
        pytest.param("x" * 300_000, id="large"),
        pytest.param("é" * 200_000, id="large-in-bytes"),
        pytest.param('"\\0": 1', id="nul-in-key"),
        pytest.param('policies: {agent_roles: {"a\\nb": {}}}', id="newline-in-name"),
        pytest.param(f"policies: {{default: {{allowed_commands: [{'a,' * 1001}]}}}}", id="endless-list"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        loads(text)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match=r"policy\.yaml does not exist"):
        load(tmp_path / "policy.yaml")


def test_field_at_fault_is_on_the_error() -> None:
    with pytest.raises(BadPolicy) as caught:
        loads(POLICY.replace("512MB", "nothing"))
    assert caught.value.field == "policies.default.max_memory"


CEILINGS = """\
policies:
  ceilings: {{max_memory: 1GB, network_access: false, approve_code_at: high, images: [a:1, b:1]}}
  {kind}:
{words}
"""


@pytest.mark.parametrize(
    "words",
    [
        "max_memory: 2GB",
        "network_access: true",
        "approve_code_at: critical",
        "approve_code_at: off",
        "images: [c:1]",
    ],
)
@pytest.mark.parametrize(
    ("kind", "block"),
    [
        pytest.param("default", "    {}", id="default"),
        pytest.param("tools", "    code_run: {{{}}}", id="tool"),
        pytest.param("agent_roles", "    r: {{{}}}", id="role"),
    ],
)
def test_operator_cannot_state_more_than_the_ceiling(kind: str, block: str, words: str) -> None:
    key = words.partition(":")[0]
    with pytest.raises(BadPolicy, match=rf"p\.yaml:4: .*more than `policies\.ceilings\.{key}` allows"):
        loads(CEILINGS.format(kind=kind, words=block.format(words)), name="p.yaml")


def test_operator_may_state_the_ceiling_itself() -> None:
    words = "    r: {max_memory: 1GB, approve_code_at: high, images: [a:1]}"
    policies = loads(CEILINGS.format(kind="agent_roles", words=words))
    assert decide(policies, role="r").grant.limits.memory_mb == 1024


ROLES = """\
policies:
  default: {max_pids: 10}
  agent_roles:
    base:
      inherits: default
      tools: [file_read, search]
      max_memory: 100MB
      allowed_paths: [/workspace/a/**]
      denied_paths: [/workspace/.env]
    middle:
      inherits: base
      max_memory: 200MB
      allowed_paths: [/workspace/b/**]
    top:
      inherits: middle
      tools: [search]
      max_pids: 20
"""


def test_role_says_over_what_it_inherits() -> None:
    role = loads(ROLES).roles["top"]
    assert role.tools == frozenset({"search"})
    assert role.policy == Policy(
        memory_mb=200,
        pids=20,
        paths=(PatternRules("role:top", allow=("/workspace/b/**",), deny=("/workspace/.env",)),),
    )


def test_role_inherits_the_list_of_tools() -> None:
    policies = loads(ROLES)
    assert decide(policies, role="middle", tool="search").grant.limits.memory_mb == 200
    with pytest.raises(ToolNotAllowed):
        decide(policies, role="middle", tool="code_run")


def test_inheriting_the_default_is_not_stating_it() -> None:
    words = "default: {max_pids: 10}, tools: {search: {max_pids: 20}}, agent_roles: {r: {inherits: default}}"
    policies = loads(f"policies: {{{words}}}")
    assert decide(policies, role="r", tool="search").grant.limits.pids == 20


def chain(length: int, last: str) -> str:
    roles = [f"    r{at}: {{inherits: r{at + 1}}}" for at in range(length - 1)]
    return "\n".join(["policies:", "  agent_roles:", *roles, f"    r{length - 1}: {{inherits: {last}}}"])


def test_sixteen_generations_are_enough() -> None:
    assert len(loads(chain(16, "default")).roles) == 16
    with pytest.raises(BadPolicy, match=r"p\.yaml:3: .*more than 16"):
        loads(chain(17, "default"), name="p.yaml")


@pytest.mark.parametrize("length", [2, 3, 5000])
def test_loop_of_roles_is_refused(length: int) -> None:
    with pytest.raises(BadPolicy, match="inherits"):
        loads(chain(length, "r0"))


def test_built_in_tool_of_a_high_tier_never_leaves_the_jar_whatever_tier_it_is_given() -> None:
    with pytest.raises(BadPolicy, match="outside a jar"):
        loads("policies: {tools: {code_run: {risk_level: low, sandbox_enabled: false}}}")


def test_tool_of_a_low_tier_may_leave_the_jar() -> None:
    policies = loads("policies: {tools: {search: {sandbox_enabled: false}}}")
    assert not decide(policies, tool="search").grant.sandboxed


def test_tier_of_a_built_in_tool_can_be_set() -> None:
    policies = loads("policies: {tools: {code_run: {risk_level: critical}}}")
    decision = decide(policies, tool="code_run")
    assert decision.provenance["risk"][:2] == (RiskTier.CRITICAL, "tool:code_run")
    assert decision.provenance["approve_at"][:2] == (RiskTier.CRITICAL, "tool:code_run")


def network(words: str) -> tuple[NetworkRules, ...]:
    return loads(f"network: {{{words}}}").settings.network_rules


def test_network_block_becomes_one_layer() -> None:
    words = (
        "allowlist: {domains: [a.com], ips: [10.1.0.0/16], ports: [443]},"
        "denylist: {domains: ['*.b.com', '10.*'], ips: ['::1'], ports: [22]}"
    )
    assert network(words) == (
        NetworkRules(
            "settings",
            hosts=("a.com",),
            ports=(443,),
            addresses=("10.1.0.0/16",),
            denied_hosts=("*.b.com",),
            denied_ports=(22,),
            denied_addresses=("::1/128", "10.0.0.0/8"),
        ),
    )


def test_list_that_is_not_enabled_has_no_opinion_but_is_checked() -> None:
    assert network("allowlist: {enabled: false, domains: [a.com]}") == ()
    with pytest.raises(BadPolicy):
        network("allowlist: {enabled: false, domains: [A.com]}")


def test_empty_allowlist_allows_nothing() -> None:
    assert network("allowlist: {domains: []}") == (NetworkRules("settings", hosts=()),)


def test_hosts_may_be_read_only_for_everyone() -> None:
    assert network("read_only_domains: [pypi.org], allowlist: {domains: ['*.org']}") == (
        NetworkRules("settings", hosts=("*.org",), read_only_hosts=("pypi.org",)),
    )


def complaint(text: str) -> str:
    try:
        loads(text)
    except BadPolicy as error:
        return error.message
    return ""


@given(st.text())
@example("policies: {default: {max_memory: 1GB}}")
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    assert "\n" not in complaint(text)


PIECES = st.text(max_size=4) | st.sampled_from(
    ["&a ", "*a", "!!x ", "<<: ", "\n", "  ", ": ", "- ", "[", "{", '"']
)


@given(st.integers(0, len(SEED004)), st.integers(0, 12), PIECES)
def test_any_change_to_a_policy_is_read_or_refused(at: int, cut: int, put: str) -> None:
    assert "\n" not in complaint(SEED004[:at] + put + SEED004[at + cut :])


def test_approvers_are_roles_and_tokens_by_tier() -> None:
    said = "policies:\n  approvers:\n    high: [operator, tok-0123456789ab]\n    critical: []\n"
    assert loads(said).approvers == {
        RiskTier.HIGH: {"operator", "tok-0123456789ab"},
        RiskTier.CRITICAL: frozenset(),
    }
    assert loads("policies: {}").approvers == {}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        pytest.param("severe: [operator]", "unknown key `severe`", id="tier"),
        pytest.param("high: [aprover]", "did you mean `approver`", id="role"),
        pytest.param("high: [agent]", "decides nothing", id="agent"),
        pytest.param("high: [viewer]", "decides nothing", id="viewer"),
        pytest.param("high: [tok-1]", "id of a token", id="token"),
        pytest.param("high: ['']", "id of a token", id="nobody"),
        pytest.param("high: operator", "expected a list", id="no list"),
    ],
)
def test_an_approver_that_cannot_be_one_is_refused_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        loads(f"policies:\n  approvers:\n    {line}\n", name="p.yaml")
    assert caught.value.message.startswith("p.yaml:3: ")
    assert complaint in caught.value.message


def test_every_example_of_the_documentation_loads() -> None:
    examples = re.findall(r"^```yaml policy\n(.*?)^```$", DOC.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 3
    for text in examples:
        loads(text, name="docs/policy.md")


def test_every_key_is_documented() -> None:
    words = set(re.findall(r"`([a-z_]+)`", DOC.read_text("utf-8")))
    assert frozenset().union(*KEYS.values(), BY_WIRE_NAME) <= words
