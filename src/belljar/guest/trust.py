"""Files beside the way out: what some programs must be pointed to, and whom they are to trust.

They lie in /tmp and belong to the program, which has only itself to harm by changing them.
Standard library only.
"""

from __future__ import annotations

import os

FOLDER = "/tmp/.belljar"
CERTIFICATES = FOLDER + "/certificates.pem"
_SYSTEMS = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/cert.pem",
)


def write(files: dict[str, str], certificate: str) -> None:
    """`certificate`, where there is one, is added to those that the jar's own system trusts."""
    os.makedirs(FOLDER, exist_ok=True)
    if certificate:
        files = {**files, os.path.basename(CERTIFICATES): certificate + _trusted_anyway()}
    for name, text in files.items():
        with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
            file.write(text)


def _trusted_anyway() -> str:
    for path in _SYSTEMS:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except OSError:
            continue
    return ""
