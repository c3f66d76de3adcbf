"""Who may call: bearer tokens with a role and, where given, a list of projects.

The file holds hashes only. A token is shown once, when it is made; the operator's own lies in a file
that only its owner can read, so that the command line on the same machine finds it.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from belljar.errors import BadConfig, BadRequest, NotFound, StoreUnavailable

__all__ = ["Role", "Token", "Tokens"]


class Role(StrEnum):
    OPERATOR = "operator"  # everything
    AGENT = "agent"  # runs, and sees its own projects; never approves
    APPROVER = "approver"  # sees and decides what waits for a person
    VIEWER = "viewer"  # sees

    @property
    def may_run(self) -> bool:
        return self in (Role.OPERATOR, Role.AGENT)


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; not the token."""

    id: str
    role: Role
    projects: tuple[str, ...] | None
    """Only these; None is all, empty is none."""
    created_at: str
    sha256: str
    note: str = ""
    agent_role: str | None = None
    """The policy's role that every run of this token has; None: none."""

    def sees(self, project_id: str) -> bool:
        return self.projects is None or project_id in self.projects


class Tokens:
    """The tokens of one data directory. Read anew when the file changes: a revoked one is out at once."""

    def __init__(self, data_dir: Path, configured: str | None = None) -> None:
        self._file = data_dir / "tokens.json"
        self._own_file = data_dir / "token"
        self._configured = configured
        self._read_at: tuple[int, int] | None = None
        self._known: dict[str, Token] = {}

    def operator_token(self) -> str:
        """The configured one, or the one the first start made."""
        if self._configured is not None:
            return self._configured
        try:
            known = self._own_file.read_text("utf-8").strip()
            if not known:  # a disk that was full: an empty token would let everybody in
                raise BadConfig(f"the token file is empty; remove {self._own_file.name}", field="token")
            return known
        except FileNotFoundError:
            pass
        except OSError as error:
            raise BadConfig(f"the token file cannot be read: {error.strerror}", field="token") from error
        token = secrets.token_urlsafe(32)
        try:
            _write_whole(self._own_file, token + "\n", os.link)
        except FileExistsError:  # another process was first
            return self.operator_token()
        return token

    def identify(self, text: str) -> Token | None:
        """Whose token this is; None for nobody's. Compares hashes, in constant time."""
        digest = _hash(text)
        if hmac.compare_digest(digest, _hash(self.operator_token())):
            return Token("operator", Role.OPERATOR, None, "", digest)
        found = None
        for token in self.all():
            if hmac.compare_digest(digest, token.sha256):
                found = token
        return found

    def create(
        self, role: Role, projects: tuple[str, ...] | None, note: str = "", agent_role: str | None = None
    ) -> tuple[Token, str]:
        """The new token's record, and the token itself, which is not kept."""
        if len(note) > 200 or not note.isprintable():
            raise BadRequest("a note is at most 200 printable characters", field="note")
        text = secrets.token_urlsafe(32)
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        token_id = f"tok-{secrets.token_hex(6)}"
        token = Token(token_id, role, projects, created_at, _hash(text), note, agent_role)
        with self._changing():
            self._write([*self.all(), token])
        return token, text

    def revoke(self, token_id: str) -> None:
        with self._changing():
            known = self.all()
            left = [token for token in known if token.id != token_id]
            if len(left) == len(known):
                raise NotFound(f"there is no token {token_id!r}", field="token_id")
            self._write(left)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One at a time, of all processes: who reads, changes and writes loses nobody else's token."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _unwritable(self._file, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def all(self) -> list[Token]:
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadConfig(f"{self._file.name} cannot be read: {error.strerror}", field="token") from error
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if stamp != self._read_at:
            try:
                rows = json.loads(self._file.read_text("utf-8"))
                known = [
                    Token(
                        row["id"],
                        Role(row["role"]),
                        None if row["projects"] is None else tuple(row["projects"]),
                        row["created_at"],
                        row["sha256"],
                        row["note"],
                        row.get("agent_role"),
                    )
                    for row in rows
                ]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise BadConfig(f"{self._file.name} is damaged: {error}", field="token") from error
            self._known = {token.id: token for token in known}
            self._read_at = stamp
        return list(self._known.values())

    def _write(self, tokens: list[Token]) -> None:
        _write_whole(self._file, json.dumps([asdict(token) for token in tokens], indent=2), os.replace)


def _write_whole(path: Path, text: str, put: Callable[[Path, Path], None]) -> None:
    """Whole, durable and for its owner only: a reader sees what was there before, or all of this.

    `put` gives the new file its name. With `os.link` that raises FileExistsError where there is one already.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            put(new, path)
        finally:
            new.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        raise
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path.name} cannot be written: {error.strerror}; see that its disk is writable and has room"
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
