"""What comes of asking for a name: a contact, or a refusal that the program can read."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from belljar.egress.secrets import Secret

__all__ = ["Contact", "Refusal", "Spent"]


class Refusal(Exception):
    """What a program is told instead of being connected. `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Spent(Exception):
    """The run has moved all that it may; a connection that was promised is cut."""


@dataclass(frozen=True, slots=True)
class Contact:
    """A name that may be talked to, and the addresses that it was found to have."""

    number: int
    """Of the decision that it may."""
    host: str
    port: int
    addresses: tuple[str, ...]
    secret: Secret | None = None
    identity: ssl.SSLContext | None = None
    """Whom we pass ourselves off as to the program, where its TLS is opened to read its requests."""
    read_only: str = ""
    """The rule by which nothing may be sent there; empty where there is none."""

    @property
    def is_plain_http(self) -> bool:
        """Whether its requests can be read as they come: by its port, or because a secret goes into them."""
        return self.port == 80 or (self.secret is not None and not self.secret.tls)
