"""`belljar verify`: are the receipts of this data directory, or one that was exported, what was signed?

Needs no running service: only the records, and the public half of the key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from belljar.cli.options import AsJson, DataDir, config_with
from belljar.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from belljar.audit.receipts import Fault, LeftBehind, Note
    from belljar.audit.records import Receipt
    from belljar.config import Config

_EXEC_ID = re.compile(r"ex-[0-9a-f]+")
_FAULTS = 1000
"""The search ends after so many."""


class Checked(NamedTuple):
    receipts: int
    faults: Sequence[Fault]
    notes: Sequence[Note] = ()


def verify(
    what: Annotated[
        str | None, typer.Argument(metavar="[ID|FILE]", help="A run, or a file with an exported receipt.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="The whole chain, as without ID or FILE; a FILE's receipt must be in it."),
    ] = False,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public key; else that of the data directory.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Check receipts, records, artifacts and the audit trail. Exit status 1 if something is wrong."""
    import asyncio

    from belljar.audit.receipts import load_exported, load_public_key, verify_receipt

    config = config_with(data_dir=data_dir)
    own_key = config.data_dir / "signing.key.pub"
    if key is None and not own_key.exists():
        raise BadRequest(f"there are no receipts in {config.data_dir} yet", field="data_dir")
    public_key = load_public_key(key or own_key)
    if what is None or _EXEC_ID.fullmatch(what):
        checked = asyncio.run(_walk(config, public_key, run=None if everything else what))
    elif not Path(what).is_file():
        message = f"{what!r} is neither the id of a run (ex-…) nor a file with an exported receipt"
        raise BadRequest(message, field="what")
    else:
        receipt = load_exported(Path(what))
        checked = Checked(1, verify_receipt(receipt, public_key))
        if everything:
            checked = asyncio.run(_walk(config, public_key, anchor=receipt))
    if as_json:
        _print_json(checked)
    else:
        _print(checked)
    raise typer.Exit(1 if checked.faults else 0)


async def _walk(
    config: Config, public_key: Ed25519PublicKey, *, run: str | None = None, anchor: Receipt | None = None
) -> Checked:
    """The whole chain. For one run too, of which the faults are then picked: by itself a receipt does not
    show that it was put into the chain later."""
    from belljar.audit.receipts import verify_chain
    from belljar.audit.trail import verify_trail
    from belljar.service import open_store

    async with await open_store(config, signer=None) as store:
        if run is not None and await store.receipt_of(run) is None:
            raise NotFound(f"there is no receipt of a run {run}; one that is not over has none yet")
        left_behind = _left_behind(config)
        walked = await verify_chain(store, public_key, left_behind=left_behind, anchor=anchor, limit=_FAULTS)
        faults = walked.faults
        trail = config.data_dir / "audit.jsonl"
        if trail.exists():
            faults += await verify_trail(trail, store, limit=_FAULTS)
        if run is not None:
            of_run = [note for note in walked.notes if note.exec_id == run]
            return Checked(1, [fault for fault in faults if fault.exec_id == run], of_run)
        return Checked(walked.receipts, faults, walked.notes)


def _left_behind(config: Config) -> LeftBehind | None:
    from belljar.execution.workspace import Workspace
    from belljar.wiring import workspace_root

    root = workspace_root(config)
    return Workspace(root).digests if root.is_dir() else None


def _print(checked: Checked) -> None:
    from belljar.cli.tables import one_line

    for fault in checked.faults:
        where = " ".join(
            part for part in (fault.number is not None and f"#{fault.number}", fault.exec_id) if part
        )
        typer.echo(one_line(f"{fault.kind}: {where}: {fault.what}"))
    for note in checked.notes:
        typer.echo(one_line(f"note: #{note.number} {note.exec_id}: {note.what}"))
    if len(checked.faults) >= _FAULTS:
        typer.echo(f"there may be more than these {_FAULTS}")
    receipts = f"{checked.receipts} receipt{'' if checked.receipts == 1 else 's'}"
    typer.echo(f"{receipts}: {f'{len(checked.faults)} faults' if checked.faults else 'ok'}")


def _print_json(checked: Checked) -> None:
    import json
    from dataclasses import asdict

    faults = [asdict(fault) for fault in checked.faults]
    notes = [note._asdict() for note in checked.notes]
    said = {"ok": not faults, "receipts": checked.receipts, "faults": faults, "notes": notes}
    typer.echo(json.dumps(said, indent=2))
