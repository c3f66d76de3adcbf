"""One call to run something: the request, whose it is, and under which name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.execution.surroundings import Surroundings
from belljar.models import InputFile, RunRequest, canonical_json
from belljar.policy.layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    request: RunRequest
    project_id: str = "default"
    request_id: str | None = None
    """The caller's own id. The same id with the same content is the same run, executed once."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """What the request asks of policy, in its own words (`limits.memory_mb`, …)."""
    persist_work: bool = False
    """Start with the project's `work` as earlier runs left it, and leave it for later ones."""

    # Who asks, and in which context.
    token_id: str = ""
    role: str | None = None
    tool: str | None = None
    skill_id: str | None = None
    skill: Layer | None = None
    """What the skill may use at most, where one is called."""
    skill_digest: str | None = None
    task_id: str | None = None
    conversation_id: str | None = None
    session_id: str | None = None
    in_session: bool = False
    """It runs in the jar of that session. Otherwise a session id is a caller's own word."""
    agent_id: str | None = None
    org_id: str | None = None
    surroundings: Surroundings | None = None
    """Where a person has to see a run in a session: what lies there."""

    @property
    def digest(self) -> str:
        """sha256 of everything that decides what will be run. Values of variables count, but are not kept."""
        request = self.request
        asked: dict[str, Any] = {
            "project_id": self.project_id,
            "language": request.language,
            "code": None if request.code is None else _text_digest(request.code),
            "command": request.command,
            "start": request.start,
            "args": request.args,
            "files": digests(request.files),
            "inputs": digests(request.inputs),
            "output_files": request.output_files,
            "working_dir": request.working_dir,
            "env": {
                name: sha256(value.encode("utf-8", "surrogatepass")) for name, value in request.env.items()
            },
            "stdin": sha256(request.stdin),
            "overrides": self.overrides,
            "persist_work": self.persist_work,
            "session": [self.session_id, request.context, request.stdin_open],
            "context": [
                self.role,
                self.tool,
                self.skill_id,
                self.skill_digest,
                self.task_id,
                self.conversation_id,
            ],
        }
        if request.packages:  # without them it is what it was before there were any
            asked["packages"] = request.packages
        if self.surroundings is not None:
            asked["surroundings"] = self.surroundings.files
        if request.inline is not None:
            asked["inline"] = request.inline
        return sha256(canonical_json(asked))


def digests(files: Iterable[InputFile]) -> dict[str, str]:
    return {file.path: sha256(file.content) for file in files}


def _text_digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
