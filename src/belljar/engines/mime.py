"""The media type of an artifact, from its name. Nothing is opened: content is hostile."""

from __future__ import annotations

import mimetypes

_KNOWN = mimetypes.MimeTypes()  # the built-in table only: answers must not depend on the host's files


def mime_of(path: str) -> str:
    return _KNOWN.guess_type(path, strict=False)[0] or "application/octet-stream"
