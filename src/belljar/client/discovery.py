"""Where the service is and with which token it is called, when the caller does not say."""

from __future__ import annotations

import ipaddress

import httpx2

from belljar.config import Config
from belljar.errors import BadConfig

__all__ = ["address_of", "token_for"]


def address_of(config: Config) -> str:
    """Where the configuration says the service is."""
    if config.runner_url is not None:
        return config.runner_url.rstrip("/")
    if config.port == 0:
        raise BadConfig(
            "with sandbox.port 0 only the service knows its port; set sandbox.runner_url", field="runner_url"
        )
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # what a service listens on, no one can call
    host = everywhere.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def token_for(base_url: str, config: Config) -> str | None:
    """The configured token, or for a service of this machine the one in its file. Never makes one."""
    if config.token is not None:
        return config.token
    if not _is_this_machine(httpx2.URL(base_url).host):
        return None  # the file's token is not for others to see
    try:
        return (config.data_dir / "token").read_text("utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        message = "the token file cannot be read by this user; give a token by BELLJAR_TOKEN"
        raise BadConfig(message, field="token") from error


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
