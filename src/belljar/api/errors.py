"""What a caller is told when there is no answer: the shape of an error, and the one table of its status.

{"request_id": …, "status": "error", "error": {"code": …, "message": …, "field": …, "exec_id": …}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.responses import Response

from belljar import errors
from belljar.errors import BelljarError, QueueFull

__all__ = [
    "INTERNAL",
    "STATUS",
    "Recorded",
    "WrongRequest",
    "error_answer",
    "error_body",
    "is_private",
    "status_of",
]

INTERNAL = "INTERNAL"
"""A fault of ours. The log has it under the request_id that the answer names."""

_STATUS_OF_TREE: Mapping[type[BelljarError], int] = {
    errors.BadRequest: 400,
    errors.Refused: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.QueueFull: 429,
    errors.Unavailable: 503,
    errors.EngineUnavailable: 503,
}
_CLASSES = [getattr(errors, name) for name in errors.__all__ if name != "BelljarError"]

STATUS: Mapping[str, int] = MappingProxyType(
    {
        cls.code: next(status for root, status in _STATUS_OF_TREE.items() if issubclass(cls, root))
        for cls in _CLASSES
    }
    | {INTERNAL: 500}
)
"""HTTP status of every code."""

_PRIVATE = frozenset(
    cls.code for cls in _CLASSES if issubclass(cls, (errors.EngineUnavailable, errors.StoreUnavailable))
)
_DETAILS = ("reason", "asked", "ceiling", "layer", "approval_id")
"""What a path refused, a policy escalated and a run that waits say besides."""
_LATER_S = 1


class WrongRequest(errors.BadRequest):
    """Wrong already as HTTP, where HTTP has a status of its own for it."""

    def __init__(self, status: int, message: str, *, field: str, **headers: str) -> None:
        super().__init__(message, field=field)
        self.status = status
        self.headers = headers


class Recorded(BelljarError):
    """What a record says went wrong, said again."""

    def __init__(
        self, code: str | None, message: str | None, field: str | None = None, exec_id: str = ""
    ) -> None:
        super().__init__(message or "a fault of the service", field=field)
        self.code = code or INTERNAL  # type: ignore[misc]  # each record has its own
        self.exec_id = exec_id


def status_of(error: BelljarError) -> int:
    if isinstance(error, WrongRequest):
        return error.status
    if isinstance(error, errors.LimitExceeded) and error.field == "body":
        return 413
    return STATUS.get(_code(error), 500)


def is_private(code: str | None) -> bool:
    """Whether the reason is about the machine, and so only for the operator."""
    return code in _PRIVATE


def error_body(error: BelljarError, *, request_id: str | None, operator: bool) -> dict[str, Any]:
    code, message = _code(error), error.message
    if is_private(code) and not operator:
        message = "the service cannot run this now; its operator can look up why"
    said: dict[str, object] = {"code": code, "message": message}
    if error.field is not None:
        said["field"] = error.field
    if error.exec_id:
        said["exec_id"] = error.exec_id
    said |= {name: _plain(getattr(error, name)) for name in _DETAILS if hasattr(error, name)}
    return {"request_id": request_id, "status": "error", "error": said}


def error_answer(error: BelljarError, *, request_id: str | None, operator: bool) -> Response:
    status = status_of(error)
    headers = dict(error.headers) if isinstance(error, WrongRequest) else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, QueueFull):
        headers["retry-after"] = str(error.retry_after_s)
    elif isinstance(error, errors.Unavailable):
        headers["retry-after"] = str(_LATER_S)
    body = error_body(error, request_id=request_id, operator=operator)
    return Response(json.dumps(body), status, headers, media_type="application/json")


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _code(error: BelljarError) -> str:
    code: str = getattr(error, "code", INTERNAL)
    return code
