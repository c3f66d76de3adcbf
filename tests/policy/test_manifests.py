from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadPolicy
from belljar.models import PatternRules
from belljar.policy import manifests
from belljar.policy.layers import Policy

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST: dict[str, Any] = {
    "schema_version": 1,
    "id": "shell.run",
    "name": "Shell",
    "description": "Runs a shell script.",
    "interface": {"inputs": {"script": {"type": "string"}}, "outputs": {}},
    "runtime": {"kind": "docker", "image": "python:3.12-slim", "entrypoint": ["bash", "-lc"]},
    "permissions": {
        "fs": {"read": ["inputs/**"], "write": ["work/**", "artifacts/**"]},
        "net": {"mode": "none"},
    },
    "limits": {"timeout_ms": 60000, "memory_mb": 1024, "max_stdout_bytes": 1048576, "cpu_cores": 1},
}


def test_manifest_becomes_a_layer_under_its_id() -> None:
    layer = manifests.loads(json.dumps(MANIFEST))
    assert layer.name == "skill:shell.run"
    allowed = ("/workspace/inputs/**", "/workspace/work/**", "/workspace/artifacts/**")
    assert layer.policy == Policy(
        timeout_s=60.0,
        memory_mb=1024,
        stdout_kb=1024,
        cpu_cores=1.0,
        network_access=False,
        images=frozenset({"python:3.12-slim"}),
        paths=(PatternRules("skill:shell.run", allow=allowed),),
    )


def test_manifest_that_says_nothing_has_no_opinion() -> None:
    assert manifests.loads('{"id": "a.b"}').policy == Policy()


@pytest.mark.parametrize(
    ("change", "line", "complaint"),
    [
        pytest.param({"permisions": {}}, 2, "did you mean `permissions`", id="unknown-key"),
        pytest.param({"limits": {"memory": 1}}, 3, "did you mean `memory_mb`", id="unknown-limit"),
        pytest.param({"limits": {"memory_mb": "64m"}}, 3, "limits.memory_mb: must be a number", id="text"),
        pytest.param({"limits": {"memory_mb": True}}, 3, "must be a number", id="boolean"),
        pytest.param({"limits": {"memory_mb": None}}, 3, "must be a number", id="null"),
        pytest.param({"limits": {"memory_mb": -1}}, 3, "negative", id="negative"),
        pytest.param({"limits": {"memory_mb": 2**60}}, 3, "2\\*\\*53", id="too-large"),
        pytest.param({"limits": {"memory_mb": 10**30}}, 3, "too large", id="much-too-large"),
        pytest.param({"limits": {"timeout_ms": 1, "timeout_s": 1}}, 4, "says the same", id="said-twice"),
        pytest.param({"limits": []}, 2, "expected a block of keys", id="list-of-limits"),
        pytest.param({"permissions": {"net": {"mode": "bridge"}}}, 4, "only mode", id="network"),
        pytest.param({"permissions": {"fs": {"read": ["/etc/**"]}}}, 5, "not under", id="outside"),
        pytest.param({"permissions": {"fs": {"read": ["inputs/../.."]}}}, 5, "`..`", id="upwards"),
        pytest.param({"permissions": {"fs": {"exec": []}}}, 4, "unknown key `exec`", id="unknown-permission"),
        pytest.param({"runtime": {"kind": "host"}}, 3, "only kind", id="kind"),
        pytest.param({"runtime": {"image": "--privileged"}}, 3, "image name", id="image"),
        pytest.param({"runtime": {"entrypoint": "bash"}}, 3, "expected a list", id="entrypoint"),
        pytest.param({"id": "Shell"}, 2, "not a skill id", id="id"),
        pytest.param({"id": 7}, 2, "not a skill id", id="id-as-number"),
        pytest.param({"name": {}}, 2, "expected a word", id="name"),
        pytest.param({"interface": {"input": {}}}, 3, "did you mean `inputs`", id="interface"),
    ],
)
def test_malformed_manifest_is_refused_with_its_line(
    change: dict[str, Any], line: int, complaint: str
) -> None:
    text = json.dumps(change | ({} if "id" in change else {"id": "a.b"}), indent=1)
    with pytest.raises(BadPolicy, match=complaint) as caught:
        manifests.loads(text, name="m.json")
    assert caught.value.message.startswith(f"m.json:{line}: ")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="list"),
        pytest.param('"x"', id="text"),
        pytest.param("{}", id="no-id"),
        pytest.param('{"id": "a.b", "id": "c.d"}', id="duplicate-key"),
        pytest.param('{"id": "a.b",}', id="trailing-comma"),
        pytest.param('{"id": "a.b"} x', id="extra"),
        pytest.param('{"id": NaN}', id="nan"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"a":' * 50_000, id="deep-objects"),
        pytest.param('{"id": "\\ud800.b"}', id="lone-surrogate"),
        pytest.param('{"limits": {"pids": ' + "9" * 5000 + "}}", id="5000-digits"),
        pytest.param(" " * 300_000, id="large"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(BadPolicy):
        manifests.loads(text)


def test_missing_manifest_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="does not exist"):
        manifests.load(tmp_path / "manifest.json")


def complaint(text: str) -> str:
    try:
        manifests.loads(text)
    except BadPolicy as error:
        return error.message
    return ""


@given(st.text() | st.text(alphabet='{}[]",:\\ud80 1e9-.truefalsn\n'))
def test_any_text_is_a_manifest_or_refused(text: str) -> None:
    assert "\n" not in complaint(text)


TEXT = json.dumps(MANIFEST, indent=1)


@given(st.integers(0, len(TEXT)), st.integers(0, 8), st.text(max_size=5))
def test_any_change_to_a_manifest_is_read_or_refused(at: int, cut: int, put: str) -> None:
    assert "\n" not in complaint(TEXT[:at] + put + TEXT[at + cut :])
