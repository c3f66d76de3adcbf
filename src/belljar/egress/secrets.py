"""Credentials that are put into requests on their way out, so that no program ever holds them.

    secrets:
      github:
        host: api.github.com
        header: Authorization
        form: Bearer {}
        file: github.token        # beside this file; or `value:`
        tls: true                 # open the TLS of this host to put it in

Only its name is ever told. Without `tls` a secret goes into plain HTTP on port 80; with it, into HTTPS on port 443.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

__all__ = ["Secret"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    name: str
    host: str
    header: str = ""
    """Exactly one of `header` and `query` is given: where the value goes."""
    query: str = ""
    form: str = "{}"
    value: str = field(repr=False)
    tls: bool = False

    @property
    def port(self) -> int:
        return 443 if self.tls else 80

    def into(self, path: str) -> tuple[str, tuple[tuple[bytes, bytes], ...]]:
        """The path and the header fields of a request that carries it; what the program put there is gone."""
        value = self.form.replace("{}", self.value)
        if self.header:
            return path, ((self.header.lower().encode("ascii"), value.encode("latin-1")),)
        place, _, query = path.partition("?")
        kept = [part for part in query.split("&") if part and part.partition("=")[0] != self.query]
        return f"{place}?{'&'.join([*kept, f'{self.query}={quote(value, safe="")}'])}", ()
