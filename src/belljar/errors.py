"""Everything that can go wrong on belljar's side, each with one stable code.

A program that fails, is killed or runs out of time is a *result*, never one of these.
Codes cross the wire, classes do not; the code decides the HTTP status and the exit status.

    BelljarError                    (never raised itself)
      BadRequest                    BAD_REQUEST          what was asked makes no sense
        PathNotAllowed              PATH_NOT_ALLOWED     a path breaks the path rules
        BadConfig                   BAD_CONFIG           a setting is unknown or has a bad value
        BadPolicy                   BAD_POLICY           a policy file or manifest is malformed
        LimitExceeded               LIMIT_EXCEEDED       an input is larger than its limit
        UnsupportedLanguage         UNSUPPORTED_LANGUAGE no such language, or no interpreter for it
        PackageUnavailable          PACKAGE_UNAVAILABLE  a package cannot be had, or not be installed
      Refused                       REFUSED              it makes sense, but is not allowed
        PolicyEscalation            POLICY_ESCALATION    asks for more than a layer grants
        ToolNotAllowed              TOOL_NOT_ALLOWED     the role may not use the tool
        ToolUnavailable             TOOL_UNAVAILABLE     policy knows the tool, this version has it not
        CommandNotAllowed           COMMAND_NOT_ALLOWED  a shell command is not on the list
        ImageNotAllowed             IMAGE_NOT_ALLOWED    the image is not on the allow-list
        PackageNotAllowed           PACKAGE_NOT_ALLOWED  policy does not allow the package
        ApprovalNeeded              APPROVAL_NEEDED      its risk needs a person's yes
        ApprovalDenied              APPROVAL_DENIED      a person said no, or nobody said yes in time
      NotFound                      NOT_FOUND            absent, or not yours
      Conflict                      CONFLICT             the id belongs to another request
      Unauthorized                  UNAUTHORIZED         no token, or one that is not known
      Forbidden                     FORBIDDEN            the token's role may not do this
      QueueFull                     QUEUE_FULL           too much is waiting already; come back later
      Unavailable                   UNAVAILABLE          the service cannot take anything now
        StoreUnavailable            STORE_UNAVAILABLE    the record cannot be written, so nothing is run
        ShuttingDown                SHUTTING_DOWN        the service is about to end
      EngineUnavailable             ENGINE_UNAVAILABLE   a jar could not be built, or was lost
        GrantNotEnforceable         GRANT_NOT_ENFORCEABLE this engine cannot hold this grant; it refuses
        PostureMismatch             POSTURE_MISMATCH     the live jar is not what was granted
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ApprovalDenied",
    "ApprovalNeeded",
    "BadConfig",
    "BadPolicy",
    "BadRequest",
    "BelljarError",
    "CommandNotAllowed",
    "Conflict",
    "EngineUnavailable",
    "Forbidden",
    "GrantNotEnforceable",
    "ImageNotAllowed",
    "LimitExceeded",
    "NotFound",
    "PackageNotAllowed",
    "PackageUnavailable",
    "PathNotAllowed",
    "PolicyEscalation",
    "PostureMismatch",
    "QueueFull",
    "Refused",
    "ShuttingDown",
    "StoreUnavailable",
    "ToolNotAllowed",
    "ToolUnavailable",
    "Unauthorized",
    "Unavailable",
    "UnsupportedLanguage",
]


class BelljarError(Exception):
    """Root of the tree. `field` names the part of the request at fault, where there is one."""

    code: ClassVar[str]
    exec_id: str = ""
    """The run whose record tells of it; empty where nothing was written down."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class BadRequest(BelljarError):
    code = "BAD_REQUEST"


class PathNotAllowed(BadRequest):
    """`reason` is a member of the closed set in `paths.PathFault`."""

    code = "PATH_NOT_ALLOWED"

    def __init__(self, message: str, *, reason: str, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.reason = reason


class BadConfig(BadRequest):
    code = "BAD_CONFIG"


class BadPolicy(BadRequest):
    code = "BAD_POLICY"


class LimitExceeded(BadRequest):
    code = "LIMIT_EXCEEDED"


class UnsupportedLanguage(BadRequest):
    code = "UNSUPPORTED_LANGUAGE"


class PackageUnavailable(BadRequest):
    code = "PACKAGE_UNAVAILABLE"


class Refused(BelljarError):
    code = "REFUSED"


class PolicyEscalation(Refused):
    """A layer asked for more than an earlier one grants; says which layer set the ceiling."""

    code = "POLICY_ESCALATION"

    def __init__(self, *, field: str, asked: object, ceiling: object, layer: str) -> None:
        super().__init__(f"{field}: asked for {asked}, but layer '{layer}' grants {ceiling}", field=field)
        self.asked = asked
        self.ceiling = ceiling
        self.layer = layer


class ToolNotAllowed(Refused):
    code = "TOOL_NOT_ALLOWED"


class ToolUnavailable(Refused):
    code = "TOOL_UNAVAILABLE"


class CommandNotAllowed(Refused):
    code = "COMMAND_NOT_ALLOWED"


class ImageNotAllowed(Refused):
    code = "IMAGE_NOT_ALLOWED"


class PackageNotAllowed(Refused):
    code = "PACKAGE_NOT_ALLOWED"


class ApprovalNeeded(Refused):
    """`exec_id` is the run that waits, `approval_id` what decides on it; empty where nobody can be asked."""

    code = "APPROVAL_NEEDED"

    def __init__(
        self, message: str, *, exec_id: str = "", approval_id: str = "", field: str | None = None
    ) -> None:
        super().__init__(message, field=field)
        self.exec_id = exec_id
        self.approval_id = approval_id


class ApprovalDenied(Refused):
    code = "APPROVAL_DENIED"


class NotFound(BelljarError):
    code = "NOT_FOUND"


class Conflict(BelljarError):
    code = "CONFLICT"


class Unauthorized(BelljarError):
    code = "UNAUTHORIZED"


class Forbidden(BelljarError):
    code = "FORBIDDEN"


class QueueFull(BelljarError):
    """`retry_after_s` is when there may be room again."""

    code = "QUEUE_FULL"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(BelljarError):
    code = "UNAVAILABLE"


class StoreUnavailable(Unavailable):
    code = "STORE_UNAVAILABLE"


class ShuttingDown(Unavailable):
    code = "SHUTTING_DOWN"


class EngineUnavailable(BelljarError):
    """The jar could not be built, or was lost. Never the program's own failure."""

    code = "ENGINE_UNAVAILABLE"


class GrantNotEnforceable(EngineUnavailable):
    """Names the layer that is missing and how to mend it; nothing was run."""

    code = "GRANT_NOT_ENFORCEABLE"


class PostureMismatch(EngineUnavailable):
    """A live jar was checked from outside and found wrong; it was destroyed before any user byte."""

    code = "POSTURE_MISMATCH"
