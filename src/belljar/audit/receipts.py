"""Receipts: what a run was and how it ended, signed, and chained to the receipt before it.

    body = canonical JSON { version, number, previous, …the record…, digests }
    hash = sha256(body)          signature = ed25519(body)          next.previous = hash

The body says the columns of the record in full, and of those that are long or private only the sha256.
Everything in it can be worked out again from the stored row, so a row that was changed afterwards is found,
and the column is named. The chain cannot show that its newest end was cut off: an exported receipt can.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from belljar.audit import network
from belljar.audit.records import AuditStore, ExecRecord, Receipt
from belljar.audit.rows import NAMES, iso
from belljar.errors import BadConfig, BadRequest, StoreUnavailable
from belljar.models import Verdict, canonical_json

VERSION = 1
GENESIS = "0" * 64
"""What the first receipt has for the hash of the one before it."""

_DIGESTED = (
    "cmd",
    "args",
    "cwd",
    "env_keys",
    "policy_snapshot",
    "risk",
    "error_reason",
    "skipped",
    "files_read",
    "files_written",
)
_STATED = tuple(name for name in NAMES if name not in _DIGESTED and name != "receipt_hash")

_OPEN_TO_OTHERS = 0o027
"""A group may read the key, because that is how Kubernetes hands a secret to a service; nobody else."""
_EXPORT_BYTES = 16 << 20

LeftBehind = Callable[[ExecRecord], Mapping[str, str] | None]
"""Path to sha256 of a run's artifacts as they are now; None when it has no folder. May block."""


class Signer:
    """The service's own key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key()

    @classmethod
    def load_or_create(cls, path: Path) -> Signer:
        """The key in `path`, made if there is none; its public half is in `<path>.pub` for whoever verifies.

        Raises:
            BadConfig: the file is no key, is open to others, or the file beside it is another key's.
            StoreUnavailable: it cannot be read or written.
        """
        try:
            if not path.exists():
                _create(path, _private_pem(Ed25519PrivateKey.generate()))
            if path.stat().st_mode & _OPEN_TO_OTHERS:
                raise BadConfig(f"the signing key {path.name} is open to others; chmod 600 it")
            signer = cls(_private_key(path))
            public = path.with_name(f"{path.name}.pub")
            if not public.exists():
                _create(public, _public_pem(signer.public_key), 0o644)
        except OSError as error:
            raise StoreUnavailable(f"the signing key {path.name} cannot be used: {error.strerror}") from error
        if load_public_key(public) != signer.public_key:
            raise BadConfig(
                f"{public.name} is not the public half of {path.name}; restore the key that belongs to it"
            )
        return signer

    def issue(self, record: ExecRecord, previous: str, number: int) -> Receipt:
        body = receipt_body(record, previous, number)
        return Receipt(number, record.exec_id, body, _sha256(body), self._key.sign(body))


def load_public_key(path: Path) -> Ed25519PublicKey:
    """
    Raises:
        BadConfig: there is no such file, or it is no ed25519 key.
    """
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadConfig(f"{path.name} is no public key that can be read") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadConfig(f"{path.name} is no ed25519 key")
    return key


def receipt_body(record: ExecRecord, previous: str, number: int) -> bytes:
    return canonical_json({"version": VERSION, "number": number, "previous": previous, **claims(record)})


def claims(record: ExecRecord) -> dict[str, Any]:
    """What a receipt says of a record."""
    stated = {name: _stated(getattr(record, name)) for name in _STATED}
    digests = {name: _sha256(canonical_json(getattr(record, name))) for name in _DIGESTED}
    return {**stated, "digests": digests}


class FaultKind(StrEnum):
    MALFORMED = "malformed"  # it is no receipt
    SIGNATURE = "signature"  # this key did not sign it
    HASH = "hash"  # its hash is not that of its body
    LINK = "link"  # it does not follow the one before it
    MISSING = "missing"  # a number is missing, or a receipt that is known from elsewhere
    RECORD = "record"  # the row is not what the receipt says
    UNRECEIPTED = "unreceipted"  # a row that is final has no receipt
    ARTIFACT = "artifact"  # a file is not what the receipt says
    LINE = "line"  # a line of the trail is not what the row says


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    number: int | None
    """Of the receipt; of the line, for a line of the trail."""
    exec_id: str | None
    what: str
    """Which column, file or number, and what is wrong with it."""


class Note(NamedTuple):
    """Of a run whose record is in order, but not all that it left was ever kept."""

    number: int
    exec_id: str
    what: str


class Walk(NamedTuple):
    """What was found along the chain."""

    receipts: int
    faults: list[Fault]
    notes: list[Note]


def verify_receipt(receipt: Receipt, public_key: Ed25519PublicKey) -> list[Fault]:
    """What is wrong with one receipt by itself; nothing else is needed but the key."""

    def fault(kind: FaultKind, what: str) -> Fault:
        return Fault(kind, receipt.number, receipt.exec_id, what)

    faults = []
    try:
        public_key.verify(receipt.signature, receipt.body)
    except InvalidSignature:
        faults.append(fault(FaultKind.SIGNATURE, "the signature is not one of this key over this body"))
    if _sha256(receipt.body) != receipt.hash:
        faults.append(fault(FaultKind.HASH, "the hash is not that of the body"))
    body = _parsed(receipt.body)
    if body is None:
        return [*faults, fault(FaultKind.MALFORMED, "the body is not a JSON object")]
    for name, value in (("number", receipt.number), ("exec_id", receipt.exec_id)):
        if body.get(name) != value:
            faults.append(fault(FaultKind.LINK, f"{name} is {value} beside the body, another one in it"))
    return faults


async def verify_chain(
    store: AuditStore,
    public_key: Ed25519PublicKey,
    *,
    left_behind: LeftBehind | None = None,
    anchor: Receipt | None = None,
    limit: int = 1000,
) -> Walk:
    """Everything that is wrong with the receipts, the rows and, if `left_behind` is given, the artifacts.

    `anchor` is a receipt that was exported earlier: if it is no longer in the chain, its end was cut off.
    Stops after `limit` faults: with a wrong key, every receipt is one.
    """
    faults: list[Fault] = []
    notes: list[Note] = []
    walked, number, previous = 0, 0, GENESIS
    async for receipt in store.receipts():
        walked += 1
        faults += verify_receipt(receipt, public_key)
        body = _parsed(receipt.body) or {}
        if receipt.number != number + 1:
            what = f"receipts {number + 1} to {receipt.number - 1} are missing"
            faults.append(Fault(FaultKind.MISSING, number + 1, None, what))
        elif body.get("previous") != previous:
            what = "its previous hash is not that of the receipt before it"
            faults.append(Fault(FaultKind.LINK, receipt.number, receipt.exec_id, what))
        if anchor is not None and receipt.number == anchor.number and receipt.body != anchor.body:
            what = "it is not the receipt that was exported under this number"
            faults.append(Fault(FaultKind.LINK, receipt.number, receipt.exec_id, what))
        try:
            record = await store.get(receipt.exec_id)
        except StoreUnavailable as error:
            faults.append(Fault(FaultKind.RECORD, receipt.number, receipt.exec_id, error.message))
        else:
            faults += await _record_faults(store, record, receipt, body, left_behind)
            if record is not None and (lost := _never_kept(record)) and len(notes) < limit:
                notes.append(Note(receipt.number, receipt.exec_id, lost))
        number, previous = receipt.number, _sha256(receipt.body)
        if len(faults) >= limit:
            return Walk(walked, faults[:limit], notes)
    if anchor is not None and anchor.number > number:
        what = f"the chain ends with {number}, but this receipt was exported from it"
        faults.append(Fault(FaultKind.MISSING, anchor.number, anchor.exec_id, what))
    for exec_id in await store.unreceipted(limit):
        faults.append(Fault(FaultKind.UNRECEIPTED, None, exec_id, "the record is final but has no receipt"))
    return Walk(walked, faults[:limit], notes)


def export(receipt: Receipt) -> dict[str, Any]:
    """For a file of its own, which `load_exported` reads."""
    return {
        "number": receipt.number,
        "exec_id": receipt.exec_id,
        "body": base64.b64encode(receipt.body).decode(),
        "hash": receipt.hash,
        "signature": base64.b64encode(receipt.signature).decode(),
    }


def load_exported(path: Path) -> Receipt:
    """
    Raises:
        BadRequest: it is no exported receipt.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_EXPORT_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        if len(data) > _EXPORT_BYTES:
            raise ValueError
        said = json.loads(data)
        number, exec_id, digest = said["number"], said["exec_id"], said["hash"]
        if type(number) is not int or type(exec_id) is not str or type(digest) is not str:
            raise TypeError
        body = base64.b64decode(said["body"], validate=True)
        signature = base64.b64decode(said["signature"], validate=True)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"{path.name} is no exported receipt") from error
    return Receipt(number, exec_id, body, digest, signature)


async def _record_faults(
    store: AuditStore,
    record: ExecRecord | None,
    receipt: Receipt,
    body: Mapping[str, Any],
    left_behind: LeftBehind | None,
) -> list[Fault]:
    def fault(kind: FaultKind, what: str) -> Fault:
        return Fault(kind, receipt.number, receipt.exec_id, what)

    if record is None:
        return [fault(FaultKind.RECORD, "the record is gone")]
    changed = _differing(record, body)
    if record.receipt_hash != receipt.hash:
        changed.append("receipt_hash")
    faults = [fault(FaultKind.RECORD, f"{name} of the record is not what it was") for name in changed]
    if not await _are_the_decisions(store, receipt.exec_id, body):
        faults.append(fault(FaultKind.RECORD, "its network decisions are not what they were"))
    if left_behind is not None and (found := await asyncio.to_thread(left_behind, record)) is not None:
        for path, digest in _artifacts(body):
            if path not in found:
                faults.append(fault(FaultKind.ARTIFACT, f"{path!r} is missing"))
            elif found[path] != digest:
                faults.append(fault(FaultKind.ARTIFACT, f"{path!r} is another file than the run left"))
    return faults


def _never_kept(record: ExecRecord) -> str | None:
    """What of a run that has a result could not be written when it ended."""
    return None if record.verdict in (None, Verdict.LOST) else record.error_reason


async def _are_the_decisions(store: AuditStore, exec_id: str, body: Mapping[str, Any]) -> bool:
    """Whether the rows are those of the receipt: none, where it says nothing of them."""
    said = body.get("network_decisions")
    digest = said.get("sha256") if isinstance(said, dict) else None
    try:
        found = await store.network_decisions(exec_id)
    except StoreUnavailable:
        return False
    return network.digest(found) == (digest or network.digest(()))


def _differing(record: ExecRecord, body: Mapping[str, Any]) -> list[str]:
    """Columns of which the body says something else. It says nothing of columns that are younger than it."""
    said, now = _flat(body), _flat(json.loads(canonical_json(claims(record))))
    return [name for name in said if name in now and said[name] != now[name]]


def _flat(said: Mapping[str, Any]) -> dict[str, Any]:
    flat = dict(said)
    digests = flat.pop("digests", None)
    return {**flat, **digests} if isinstance(digests, dict) else flat


def _artifacts(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    try:
        return [(str(one["path"]), str(one["sha256"])) for one in body["artifacts"]]
    except (KeyError, TypeError):
        return []


def _stated(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise BadConfig(f"{path.name} is no signing key that can be read") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadConfig(f"{path.name} is no ed25519 key")
    return key


def _create(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Whole or not at all, and durable. Who comes second to make the same file finds that of the first."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
