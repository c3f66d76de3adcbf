from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.conftest import opened
from tests.api.served import client_of, config_for

from belljar.config import load
from belljar.errors import BadConfig
from belljar.settings import RuntimeMode
from belljar.wiring import policies_of, workspace_root


def test_without_a_setting_the_workspaces_are_in_the_data_directory(tmp_path: Path) -> None:
    assert workspace_root(config_for(tmp_path)) == tmp_path / "workspace"


async def test_what_runs_leave_lies_where_the_setting_says(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    async with opened(tmp_path / "data", workspace_root_wsl=str(elsewhere)) as service:
        async with client_of(service) as http:
            exec_id = (await http.post("/run", json={"code": "write f x"})).json()["id"]
            assert (await http.get("/sandbox/health")).json()["workspace_root_native"] == str(elsewhere)
            assert (await http.get("/audit/verify")).json()["ok"]
    assert (elsewhere / f"projects/default/artifacts/{exec_id}/files/f").read_text() == "x"
    assert not (tmp_path / "data/workspace").exists()


def test_a_folder_of_windows_is_known_in_wsl_by_its_drive(tmp_path: Path) -> None:
    config = config_for(tmp_path, runtime_mode=RuntimeMode.WSL, workspace_root_win="D:\\jars")
    assert workspace_root(config) == Path("/mnt/d/jars")


def test_a_path_of_another_system_is_refused(tmp_path: Path) -> None:
    config = config_for(tmp_path, runtime_mode=RuntimeMode.WINDOWS, workspace_root_win="D:\\jars")
    with pytest.raises(BadConfig, match="no path of this system") as caught:
        workspace_root(config)
    assert caught.value.field == "runtime_mode"


async def test_a_workspace_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadConfig, match=r"cannot be made.*sandbox\.workspace_root_wsl"):
        async with opened(tmp_path / "data", workspace_root_wsl=str(tmp_path / "file/below")):
            pass


def test_a_limit_above_the_ceiling_is_named_with_its_place_and_both_values(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {default: {max_pids: 10}, ceilings: {max_pids: 20}}")
    environ = {"BELLJAR_POLICY": str(policy), "BELLJAR_PIDS_LIMIT": "30"}
    config = load(environ=environ, cwd=tmp_path, home=tmp_path, machine_file=tmp_path / "none")
    with pytest.raises(BadConfig) as caught:
        policies_of(config)
    assert caught.value.field == "sandbox.pids_limit"
    for said in ("sandbox.pids_limit is 30", "BELLJAR_PIDS_LIMIT", "policy.yaml: 20"):
        assert said in caught.value.message
