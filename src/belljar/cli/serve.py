"""`belljar serve`: the service for everybody who has a token."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import DataDir, Engine, config_with

if TYPE_CHECKING:
    from belljar.config import Config


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[str | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    data_dir: DataDir = None,
    engine: Engine = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="The policy.")] = None,
    max_concurrency: Annotated[str | None, typer.Option(metavar="N", help="Runs at the same time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it is as JSON.")] = False,
) -> None:
    """Take runs over HTTP until SIGTERM or Ctrl-C; a second one does not wait for what still runs."""
    import logging

    from belljar.api.server import serve as serve_http

    config = config_with(
        host=host,
        port=port,
        data_dir=data_dir,
        engine=engine,
        policy=policy,
        max_concurrent_execs=max_concurrency,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not _only_this_machine(config.host):
        typer.echo(
            f"belljar: {config.host} can be reached from elsewhere and HTTP is not encrypted, so whoever "
            "listens in has the tokens; put a proxy with TLS before it",
            err=True,
        )
    serve_http(config, on_ready=lambda url: _say_where(url, config, as_json))


def _say_where(url: str, config: Config, as_json: bool) -> None:
    token_file = None if config.token is not None else str(config.data_dir / "token")
    if as_json:
        import json

        typer.echo(json.dumps({"url": url, "token_file": token_file}))
    else:
        where = "the configured one" if token_file is None else f"in {token_file}"
        typer.echo(f"belljar: serving at {url}; the operator's token is {where}")
    sys.stdout.flush()  # whoever started us may wait for this line


def _only_this_machine(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
