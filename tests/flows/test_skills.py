"""Skills are found, checked and pinned; a hostile one is refused with the field."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from belljar.errors import (
    BadPolicy,
    BadRequest,
    Conflict,
    ImageNotAllowed,
    NotFound,
    PathNotAllowed,
    PolicyEscalation,
)
from belljar.flows.skills import MAX_OUTPUT_BYTES, Skill, Skills, load_skill, load_skills, pin, shipped
from belljar.models import InputFile, Language
from belljar.policy.decisions import decide
from belljar.policy.files import load_profile

ANYTHING = {"type": "object"}
MANIFEST: dict[str, Any] = {
    "schema_version": "1",
    "id": "my.skill",
    "name": "Mine",
    "description": "Does something.",
    "interface": {
        "inputs": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["code"],
        },
        "outputs": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    "runtime": {"kind": "docker", "entrypoint": ["python3", "main.py"]},
    "permissions": {"fs": {"read": ["inputs/**"], "write": ["artifacts/**"]}, "net": {"mode": "none"}},
    "limits": {"memory_mb": 64},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(json.dumps(MANIFEST))
    *above, last = path.split(".")
    here = manifest
    for name in above:
        here = here[name]
    here[last] = value
    return manifest


def put(folder: Path, manifest: Mapping[str, Any] = MANIFEST, name: str = "my.skill", **files: Any) -> Path:
    skill = folder / name
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "manifest.json").write_text(json.dumps(manifest))
    for path, text in {"main.py": "print(1)", **files}.items():
        (skill / path).write_text(text)
    return skill


def made(folder: Path, manifest: Mapping[str, Any] = MANIFEST, **files: Any) -> Skill:
    return load_skill(put(folder, manifest, **files))


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        pytest.param("schema_version", "2", "schema_version", id="version"),
        pytest.param("runtime.packages", ["x @ file:///x"], "runtime.packages", id="no-package"),
        pytest.param("runtime.packages", "numpy", "runtime.packages", id="no-list-of-packages"),
        pytest.param("id", "other.skill", "id", id="not its folder"),
        pytest.param("id", "Shell.Run", "id", id="case"),
        pytest.param("id", "shell", "id", id="no dot"),
        pytest.param("id", "../x.y", "id", id="path"),
        pytest.param("id", "ｍy.skill", "id", id="full width"),
        pytest.param("name", "", "name", id="no name"),
        pytest.param("description", "a\x1b[2J", "description", id="terminal"),
        pytest.param("description", "a" * 2000, "description", id="long"),
        pytest.param("runtime.kind", "host", "runtime.kind", id="kind"),
        pytest.param("runtime.image", "-v/:/host", "runtime.image", id="image injection"),
        pytest.param("runtime.image", "--privileged", "runtime.image", id="image option"),
        pytest.param("runtime.image", "a b", "runtime.image", id="image space"),
        pytest.param("runtime.image", "../x", "runtime.image", id="image path"),
        pytest.param("runtime.entrypoint", [], "runtime.entrypoint", id="no program"),
        pytest.param("runtime.entrypoint", ["{code}"], "runtime.entrypoint", id="the caller's program"),
        pytest.param("runtime.entrypoint", ["cat", "{path}"], "runtime.entrypoint", id="unknown input"),
        pytest.param("runtime.entrypoint", ["cat", "{n}"], "runtime.entrypoint", id="input of no string"),
        pytest.param("permissions.net.mode", "host", "permissions.net.mode", id="network"),
        pytest.param("permissions.fs.read", ["/etc/**"], "permissions.fs.read", id="absolute"),
        pytest.param("permissions.fs.write", ["../**"], "permissions.fs.write", id="parent"),
        pytest.param("permissions.fs.write", ["work/../../x"], "permissions.fs.write", id="climbing"),
        pytest.param("permissions.fs.read", ["work/" + "**/" * 99 + "x"], "permissions.fs", id="stars"),
        pytest.param(
            "permissions.fs.read", [f"work/{n}" for n in range(99)], "permissions.fs", id="patterns"
        ),
        pytest.param("permissions.fs.mount", ["/"], "permissions.fs.mount", id="mount"),
        pytest.param("limits.memory_mb", -1, "limits.memory_mb", id="negative"),
        pytest.param("limits.memory_mb", "64m", "limits.memory_mb", id="text"),
        pytest.param("limits.memory_mb", True, "limits.memory_mb", id="truth"),
        pytest.param("limits.netwrok", 1, "limits.netwrok", id="unknown limit"),
        pytest.param("privileged", True, "privileged", id="unknown key"),
        pytest.param(
            "interface.inputs", {"$ref": "file:///etc/passwd"}, "interface.inputs.$ref", id="reference"
        ),
        pytest.param("interface.outputs", {"type": "array"}, "interface.outputs", id="not an object"),
    ],
)
def test_a_hostile_manifest_is_refused_with_the_field(
    tmp_path: Path, path: str, value: Any, field: str
) -> None:
    with pytest.raises(BadPolicy) as caught:
        made(tmp_path, changed(path, value))
    assert caught.value.field == field


@pytest.mark.parametrize("missing", ["schema_version", "id", "name", "description", "interface", "runtime"])
def test_a_manifest_needs_its_fields(tmp_path: Path, missing: str) -> None:
    with pytest.raises(BadPolicy, match=missing):
        made(tmp_path, {name: value for name, value in MANIFEST.items() if name != missing})


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        pytest.param("limits.memory_mb", 10_000_000, PolicyEscalation, id="memory"),
        pytest.param("limits.timeout_s", 86_400, PolicyEscalation, id="time"),
        pytest.param("runtime.image", "evil:latest", ImageNotAllowed, id="image"),
    ],
)
def test_a_manifest_that_asks_for_more_than_policy_gives_is_refused(
    tmp_path: Path, path: str, value: Any, error: type[Exception]
) -> None:
    skill = made(tmp_path, changed(path, value))
    with pytest.raises(error):
        decide(load_profile("default"), skill=skill.layer)


def test_a_request_cannot_raise_what_the_manifest_says(tmp_path: Path) -> None:
    skill = made(tmp_path)
    with pytest.raises(PolicyEscalation) as caught:
        decide(load_profile("default"), skill=skill.layer, overrides={"limits.memory_mb": 65})
    assert (caught.value.field, caught.value.layer) == ("limits.memory_mb", "skill:my.skill")


def test_a_link_is_no_part_of_a_skill(tmp_path: Path) -> None:
    folder = put(tmp_path)
    os.symlink("/etc/passwd", folder / "data.txt")
    with pytest.raises(BadPolicy, match="symlink"):
        load_skill(folder)


def test_a_skill_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="at most"):
        made(tmp_path, MANIFEST, **{"big.txt": "a" * (2 << 20)})


def test_a_skill_of_too_many_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="too_many"):
        made(tmp_path, MANIFEST, **{f"f{n}": "" for n in range(200)})


def test_a_script_that_is_not_text_is_refused(tmp_path: Path) -> None:
    folder = put(tmp_path)
    (folder / "main.py").write_bytes(b"\xff\xfe")
    with pytest.raises(BadPolicy) as caught:
        load_skill(folder)
    assert caught.value.field == "runtime.entrypoint"


# Found and pinned


def test_what_comes_with_belljar_is_there_and_a_folder_adds_to_it(tmp_path: Path) -> None:
    put(tmp_path)
    assert [one.id for one in Skills(tmp_path)] == ["my.skill", "python.run", "shell.run", "table.summary"]


def test_a_skill_of_the_folder_replaces_ours_of_the_same_id(tmp_path: Path) -> None:
    put(tmp_path, changed("id", "shell.run"), "shell.run")
    assert Skills(tmp_path).get("shell.run").name == "Mine"


def test_folders_for_the_schema_and_hidden_ones_are_no_skills(tmp_path: Path) -> None:
    (tmp_path / "_schema").mkdir()
    (tmp_path / ".git").mkdir()
    assert load_skills(tmp_path) == {}


@pytest.mark.parametrize(
    "skill_id", ["Shell.run", "shell.run ", "shell.run.", "ｓhell.run", "skill.shell.run", ""]
)
def test_another_id_is_another_skill(skill_id: str) -> None:
    with pytest.raises(NotFound):
        Skills(None).get(skill_id)


def test_every_byte_of_a_skill_counts_in_its_digest(tmp_path: Path) -> None:
    one = made(tmp_path / "a")
    assert made(tmp_path / "b").digest == one.digest
    assert made(tmp_path / "c", MANIFEST, **{"main.py": "print(2)"}).digest != one.digest
    assert made(tmp_path / "d", MANIFEST, **{"more.txt": ""}).digest != one.digest
    assert made(tmp_path / "e", changed("limits.memory_mb", 65)).digest != one.digest


def test_a_caller_that_means_another_version_is_told(tmp_path: Path) -> None:
    put(tmp_path)
    skills = Skills(tmp_path)
    digest = skills.get("my.skill").digest
    assert skills.get("my.skill", digest).digest == digest
    with pytest.raises(Conflict):
        skills.get("my.skill", "0" * 64)


def test_a_pinned_folder_takes_no_change_and_no_newcomer(tmp_path: Path) -> None:
    folder = put(tmp_path)
    pin(tmp_path)
    assert "my.skill" in load_skills(tmp_path)
    (folder / "main.py").write_text("import os")
    with pytest.raises(BadPolicy, match=r"pins\.json"):
        load_skills(tmp_path)
    pin(tmp_path)
    put(tmp_path, changed("id", "new.skill"), "new.skill")
    with pytest.raises(BadPolicy, match=r"new\.skill"):
        load_skills(tmp_path)


# Called


def test_a_script_of_the_skill_is_shown_to_policy_as_code(tmp_path: Path) -> None:
    request = made(tmp_path).request({"code": "x"})
    assert (request.language, request.code, request.command) == (Language.PYTHON, "print(1)", None)
    assert json.loads(request.stdin) == {"code": "x"}


def test_the_caller_s_own_program_is_shown_to_policy_as_it_is(tmp_path: Path) -> None:
    python = shipped()["python.run"].request({"code": "import os"})
    assert (python.language, python.code) == (Language.PYTHON, "import os")
    shell = shipped()["shell.run"].request({"script": "rm -rf /; $(x)"})
    assert (shell.language, shell.code) == (Language.BASH, "rm -rf /; $(x)")


@pytest.mark.parametrize(
    "entrypoint",
    [
        pytest.param(["python3", "main.py"], id="script"),
        pytest.param(["python", "-c", "{code}"], id="code"),
        pytest.param(["python3", "-m", "alpha"], id="module"),
    ],
)
def test_packages_of_a_skill_are_asked_for_with_every_call(tmp_path: Path, entrypoint: list[str]) -> None:
    runtime = {"kind": "docker", "entrypoint": entrypoint, "packages": ["alpha>=1"]}
    request = made(tmp_path, changed("runtime", runtime)).request({"code": "1"})
    assert request.packages == ("alpha>=1",)
    assert request.language is Language.PYTHON


def test_packages_are_for_skills_in_python(tmp_path: Path) -> None:
    runtime = {"kind": "docker", "entrypoint": ["bash", "-c", "{code}"], "packages": ["alpha"]}
    with pytest.raises(BadPolicy, match="Python") as refused:
        made(tmp_path, changed("runtime", runtime))
    assert refused.value.field == "runtime.packages"


def test_an_input_stays_one_word_whatever_it_holds(tmp_path: Path) -> None:
    skill = made(tmp_path, changed("runtime.entrypoint", ["grep", "-e", "{code}", "--", "data"]))
    assert skill.request({"code": "; rm -rf / {code}"}).command == (
        "grep",
        "-e",
        "; rm -rf / {code}",
        "--",
        "data",
    )


@pytest.mark.parametrize("inputs", [{}, {"code": 1}, {"code": "x", "n": "1"}])
def test_inputs_that_are_not_as_the_manifest_says_are_refused(tmp_path: Path, inputs: Any) -> None:
    with pytest.raises(BadRequest, match="inputs"):
        made(tmp_path).request(inputs)


def test_files_it_may_not_read_are_refused(tmp_path: Path) -> None:
    skill = made(tmp_path, changed("permissions.fs.read", ["inputs/data/**"]))
    skill.check_files([InputFile("data/a.csv", b"")], ())
    with pytest.raises(PathNotAllowed):
        skill.check_files([InputFile("other.csv", b"")], ())
    with pytest.raises(PathNotAllowed):
        skill.check_files([InputFile("../a.csv", b"")], ())


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        pytest.param(b'{"n": "one"}', "outputs.n", id="wrong type"),
        pytest.param(b"{}", "required", id="missing"),
        pytest.param(b"[]", "outputs", id="no object"),
        pytest.param(b"{", "not JSON", id="not JSON"),
        pytest.param(b'{"n": NaN}', "not JSON", id="NaN"),
        pytest.param(b"[" * 100_000, "not JSON", id="deep"),
        pytest.param(b" " * (MAX_OUTPUT_BYTES + 1), "larger", id="large"),
        pytest.param(b"\xff", "not JSON", id="not text"),
    ],
)
def test_outputs_that_are_not_as_promised_are_a_failure(tmp_path: Path, left: bytes, reason: str) -> None:
    answer = made(tmp_path).answer(0, b"", b"", [("artifacts/output.json", left)])
    assert answer.outputs is None
    assert reason in (answer.fault or "")


def test_outputs_as_promised_are_the_answer(tmp_path: Path) -> None:
    assert made(tmp_path).answer(0, b"", b"", [("artifacts/output.json", b'{"n": 3}')]).outputs == {"n": 3}


# Ours


@pytest.mark.parametrize("skill_id", shipped())
def test_our_manifests_are_as_the_shipped_schema_says(skill_id: str) -> None:
    skills = resources.files("belljar") / "skills"
    schema = json.loads((skills / "_schema/manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads((skills / skill_id / "manifest.json").read_text()), schema)


@pytest.mark.parametrize("profile", ["default", "supervised"])
@pytest.mark.parametrize("skill_id", shipped())
def test_our_skills_fit_into_every_shipped_profile(skill_id: str, profile: str) -> None:
    decide(load_profile(profile), skill=shipped()[skill_id].layer)
