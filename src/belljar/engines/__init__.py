"""Where programs run: the contract in `base`, and an engine for each way to keep it."""

from __future__ import annotations
