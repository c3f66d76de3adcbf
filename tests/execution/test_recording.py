from __future__ import annotations

import json
from pathlib import Path

from tests.api.conftest import opened
from tests.api.served import client_of


async def test_what_lies_beside_a_runs_files_says_what_the_service_says(tmp_path: Path) -> None:
    async with opened(tmp_path) as service, client_of(service) as http:
        exec_id = (await http.post("/run", json={"code": "write f x"})).json()["id"]
        told = (await http.get(f"/sandbox/execs/{exec_id}")).json()
        record = await service.store.get(exec_id)
        folder = service.workspace.run_folder("default", exec_id)
    assert record is not None
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["artifacts_path"] == record.artifacts_path
    assert service.workspace.root / meta["artifacts_path"] == folder
    for name in ("started_at", "ended_at"):
        assert meta[name] == told[name]
        assert meta[name].endswith("Z")
    assert "receipt_hash" not in meta
