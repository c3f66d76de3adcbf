"""The service as the commands use it, running or in this process: found, called, its runs shown."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from belljar.errors import BelljarError, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from belljar.client import AsyncClient, Client, Event, Result
    from belljar.client.wire import RunOptions
    from belljar.config import Config
    from belljar.models import Language, Limits, RunRequest, RunResult

_CONNECT_S = 0.05
_HEALTH_S = 1.0


@contextmanager
def connected(config: Config | None = None) -> Iterator[Client]:
    """A client of the configured service. Who is not there is not waited for: a person does."""
    from belljar.client import Client, Retry
    from belljar.client.discovery import address_of, token_for
    from belljar.config import load_here

    config = config or load_here()
    address = address_of(config)
    with Client(address, token_for(address, config) or "", retry=Retry(attempts=4, first_s=0.05)) as client:
        try:
            yield client
        except Unauthorized as error:
            where = f"BELLJAR_TOKEN and, for a service of this machine, {config.data_dir / 'token'}"
            message = f"{error.message}; a token is looked for in {where}"
            raise Unauthorized(message, field=error.field) from error


@contextmanager
def at_hand(config: Config, *, here: bool) -> Iterator[Client]:
    """For one run: the service that `is_there`, else or if it is wanted `here`, one in this process."""
    if not here and is_there(config):
        with connected(config) as client:
            yield client
    else:
        from belljar.inprocess import for_one_run, local

        with local(for_one_run(config)) as client:
            yield client


def opened(config: Config, *, here: bool = False) -> AbstractAsyncContextManager[AsyncClient]:
    """For many runs, and code that does not block."""
    if not here and is_there(config):
        from belljar.client import AsyncClient

        return AsyncClient()
    from belljar.inprocess import alocal

    return alocal(config)


def is_there(config: Config) -> bool:
    """Whether a person's own run goes to a service: to the one that is named, or to their own if it is up.

    What merely listens on the port gets neither the token nor the code: it must be this user's or root's.
    """
    if config.runner_url is not None:
        return True
    if config.port == 0 or not _listens(config):
        return False
    from belljar.client import Client, Retry
    from belljar.client.discovery import address_of, token_for

    address, once = address_of(config), Retry(1)
    with suppress(BelljarError):
        token = token_for(address, config)
        with Client(address, "", timeout_s=_HEALTH_S, retry=once) as stranger:
            is_belljar = stranger.health().get("service") == "belljar"
        if token is not None and is_belljar:
            with Client(address, token, timeout_s=_HEALTH_S, retry=once) as client:
                client.explain()  # not if it is of another data directory, and does not know the token
                return True
    return False


def _listens(config: Config) -> bool:
    import socket

    listeners = set(_listeners(config.port))
    if not listeners or not listeners <= {0, os.geteuid()}:
        return False
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    try:
        socket.create_connection((host, config.port), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _listeners(port: int) -> Iterator[int]:
    """Users who listen on a port of this machine, proc_net(5)."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text("utf-8").splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    yield int(columns[7])


class Granted(NamedTuple):
    """What a service grants a run that asks for these overrides."""

    client: Client
    overrides: Mapping[str, float]
    limits: Limits
    digest: str


def granted(client: Client, config: Config, asked: Mapping[str, float], language: Language) -> Granted:
    """For what is asked, and where the caller's own configuration is narrower than the service, for that."""
    from belljar.config import stated_limits
    from belljar.models import RunRequest
    from belljar.policy.roles import tool_of

    tool = tool_of(RunRequest(language=language))
    first = _explained(client, asked, tool)
    narrowed = {
        f"limits.{name}": value
        for name, value in stated_limits(config).items()
        if f"limits.{name}" not in asked and _is_narrower(name, value, getattr(first.limits, name, None))
    }
    return _explained(client, {**narrowed, **asked}, tool) if narrowed else first


def _explained(client: Client, overrides: Mapping[str, float], tool: str) -> Granted:
    from dataclasses import fields

    from belljar.client import ForeignError
    from belljar.models import Limits

    answer = client.explain(tool=tool, policy_overrides=overrides)
    known = {one.name for one in fields(Limits)}
    try:
        limits = {name: value for name, value in answer["grant"]["limits"].items() if name in known}
        return Granted(client, overrides, Limits(**limits), answer["digest"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ForeignError(f"{client.base_url} does not say what it grants") from error


def _is_narrower(name: str, value: float, granted: float | None) -> bool:
    if granted is None:  # not a limit
        return False
    if name == "idle_timeout_s" and 0 in (value, granted):  # 0 is no limit
        return value > 0
    return value < granted


class RunThere(NamedTuple):
    result: RunResult
    """In the words of a run that took place here."""
    answer: Result
    unshown: OSError | None
    """Why its output was not shown to the end."""


def run_there(
    grant: Granted,
    request: RunRequest,
    *,
    live: bool,
    project_id: str | None = None,
    request_id: str | None = None,
) -> RunThere:
    """Run it and, if `live`, show its output while it comes. Ctrl-C cancels the run too."""
    options = _options(request, grant.overrides, project_id=project_id, request_id=request_id)
    return followed(grant.client, grant.client.stream(request.code, str(request.language), **options), live)


def followed(client: Client, events: Generator[Event | Result, None, None], live: bool) -> RunThere:
    """A run that goes on there, to its end."""
    from belljar.cli.terminal import LastingScreen
    from belljar.client import Event

    screens = {"stdout": LastingScreen(sys.stdout), "stderr": LastingScreen(sys.stderr)}
    written = {name: bytearray() for name in screens}
    exec_id = posture = ""
    answer = None
    try:
        for event in events:
            if not isinstance(event, Event):
                answer = event
            elif event.kind in screens:
                written[event.kind] += event.output
                if live:
                    screens[event.kind].write(event.output)
            elif event.kind == "started":
                posture = str(event.data.get("posture", ""))
            elif event.kind == "queued":
                exec_id = str(event.data.get("exec_id", ""))
                if live and event.data.get("waiting") and sys.stderr.isatty():
                    print(f"belljar: {event.data['waiting']} in the queue", file=sys.stderr)  # noqa: T201
            elif event.kind == "pending_approval":
                from belljar.cli.asking import decide_or_leave

                exec_id = str(event.data.get("exec_id", ""))
                decide_or_leave(client, exec_id, str(event.data.get("approval_id", "")), ask=live)
    except KeyboardInterrupt:
        if exec_id:
            with suppress(BelljarError):
                client.cancel(exec_id)
        raise
    finally:
        events.close()
        for screen in screens.values():
            screen.close()
    assert answer is not None, "a stream ends with a result"
    engine = str(client.get(answer.id).get("engine", ""))
    result = _as_run_here(answer, bytes(written["stdout"]), bytes(written["stderr"]), engine, posture)
    lost = [screen.failed for screen in screens.values() if screen.failed is not None]
    return RunThere(result, answer, lost[0] if lost else None)


def _options(
    request: RunRequest, overrides: Mapping[str, float], *, project_id: str | None, request_id: str | None
) -> RunOptions:
    from belljar.client.wire import RunOptions

    limits = {name.removeprefix("limits."): value for name, value in overrides.items()}
    options = RunOptions(
        args=request.args,
        files={file.path: file.content for file in request.files},
        env=request.env,
        stdin=request.stdin,
        start=request.start,
        limits=limits,
    )
    if request.packages:
        options["packages"] = request.packages
    if project_id is not None:
        options["project_id"] = project_id
    if request_id is not None:
        options["request_id"] = request_id
    return options


def _as_run_here(answer: Result, stdout: bytes, stderr: bytes, engine: str, posture: str) -> RunResult:
    from belljar.models import Artifact, RunResult, Skipped, SkipReason

    artifacts, skipped = [], list(answer.skipped)
    for file in answer.outputs:
        content = answer.output_files.get(file.path)
        if content is None:
            skipped.append(Skipped(file.path, SkipReason.MISSING))
        else:
            artifacts.append(Artifact(file.path, file.size, file.sha256, file.mime, content))
    return RunResult(
        verdict=answer.verdict,
        exit_code=answer.exit_code,
        signal=answer.signal,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=answer.stdout_bytes,
        stderr_bytes=answer.stderr_bytes,
        usage=answer.usage,
        artifacts=tuple(artifacts),
        skipped=tuple(skipped),
        packages=answer.packages,
        engine=engine,
        posture=posture,
    )
