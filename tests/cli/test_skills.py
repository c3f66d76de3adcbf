from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cli.commands import Belljar

MANIFEST: dict[str, Any] = {
    "schema_version": "1",
    "id": "my.skill",
    "name": "Mine",
    "description": "Does nothing.",
    "interface": {"inputs": {"type": "object"}, "outputs": {"type": "object"}},
    "runtime": {"kind": "docker", "entrypoint": ["true"]},
}


def write(folder: Path, **changes: Any) -> Path:
    skill = folder / "my.skill"
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "manifest.json").write_text(json.dumps({**MANIFEST, **changes}, indent=1))
    return skill


def test_a_sound_skill_is_validated_alone_and_in_its_folder(belljar: Belljar, tmp_path: Path) -> None:
    skill = write(tmp_path / "skills")
    for folder in (skill, skill.parent):
        ran = belljar("skills", "validate", str(folder), "--json")
        assert ran.status == 0
        [row] = ran.json
        assert (row["id"], row["ok"]) == ("my.skill", True)


def test_a_hostile_skill_is_told_with_its_field_and_line(belljar: Belljar, tmp_path: Path) -> None:
    write(tmp_path / "skills", runtime={"kind": "docker", "entrypoint": ["true"], "image": "-v/:/host"})
    ran = belljar("skills", "validate", str(tmp_path / "skills"), "--json")
    assert ran.status == 2
    assert (ran.json[0]["code"], ran.json[0]["field"]) == ("BAD_POLICY", "runtime.image")
    assert "my.skill/manifest.json:" in ran.json[0]["message"]
    assert "runtime.image" in belljar("skills", "validate", str(tmp_path / "skills")).out


def test_a_skill_that_asks_for_more_than_policy_gives_is_told(belljar: Belljar, tmp_path: Path) -> None:
    write(tmp_path / "skills", limits={"memory_mb": 10_000_000})
    ran = belljar("skills", "validate", str(tmp_path / "skills"), "--json")
    assert ran.status == 2
    assert ran.json[0]["code"] == "POLICY_ESCALATION"


def test_a_folder_without_skills_is_said(belljar: Belljar, tmp_path: Path) -> None:
    assert belljar("skills", "validate", str(tmp_path / "nothing")).status == 2


def test_pinned_skills_are_written_down(belljar: Belljar, tmp_path: Path) -> None:
    skill = write(tmp_path / "skills")
    pins = belljar("skills", "pin", str(skill.parent), "--json").json
    assert json.loads((skill.parent / "pins.json").read_text()) == pins
    assert set(pins) == {"my.skill"}


def test_the_service_s_skills_are_listed_and_called(caller: Belljar, tmp_path: Path) -> None:
    assert "table.summary" in caller("skills", "list").out
    table = Path("t.csv")
    table.write_text("a,b\n1,2\n")
    ran = caller("skills", "invoke", "table.summary", "--inputs", '{"file": "t.csv"}', "--file", "t.csv")
    assert (ran.status, ran.json["outputs"]["rows"]) == (0, 1)


def test_a_skill_that_fails_is_status_1(caller: Belljar) -> None:
    assert caller("skills", "invoke", "table.summary", "--inputs", '{"file": "none.csv"}').status == 1


def test_inputs_that_are_no_object_are_refused(caller: Belljar) -> None:
    for text in ("[]", "{", "1"):
        assert caller("skills", "invoke", "table.summary", "--inputs", text).status == 2
