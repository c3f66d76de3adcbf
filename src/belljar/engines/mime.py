"""The media type of an artifact, from its name. Nothing is opened: content is hostile."""

from __future__ import annotations

import mimetypes

_KNOWN = mimetypes.MimeTypes()  # the built-in table only: answers must not depend on the host's files
_KNOWN.add_type("text/markdown", ".md")
_KNOWN.add_type("application/jsonl", ".jsonl")
_KNOWN.add_type("application/yaml", ".yaml")


def mime_of(path: str) -> str:
    return _KNOWN.guess_type(path, strict=False)[0] or "application/octet-stream"
