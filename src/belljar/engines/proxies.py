"""What programs in a jar need to find their way out: variables, and files that some of them name."""

from __future__ import annotations

from importlib.resources import files

from belljar.guest import trust

__all__ = ["PORT", "certificates_environment", "proxy_environment", "proxy_files"]

PORT = 3128
"""Of the proxy in a jar: HTTP and SOCKS5, told apart by their first byte."""

_PROXY = f"http://127.0.0.1:{PORT}"
_NOT_THROUGH_IT = "localhost,127.0.0.1,::1"
_NODE = "node_proxy.cjs"
_CERTIFICATES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
)


def proxy_environment() -> dict[str, str]:
    """ALL_PROXY is HTTP too: a client that cannot speak SOCKS would fail of it, whatever the others say."""
    proxies = {f"{kind}_PROXY": _PROXY for kind in ("HTTP", "HTTPS", "ALL")} | {"NO_PROXY": _NOT_THROUGH_IT}
    return {
        **proxies,
        **{name.lower(): value for name, value in proxies.items()},
        "NODE_USE_ENV_PROXY": "1",
        "NODE_OPTIONS": f"--require={trust.FOLDER}/{_NODE}",
        "npm_config_proxy": _PROXY,
        "npm_config_https_proxy": _PROXY,
        "npm_config_noproxy": _NOT_THROUGH_IT,
    }


def certificates_environment() -> dict[str, str]:
    return dict.fromkeys(_CERTIFICATES, trust.CERTIFICATES)


def proxy_files() -> dict[str, str]:
    """Text by name, for the guest to write."""
    return {_NODE: files(__package__).joinpath(_NODE).read_text("utf-8")}
