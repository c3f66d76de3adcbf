"""The process inside the jar, and what it shares with the host. Standard library only.

Each container starts it anew and waits for what it imports, so it imports little: what is only for
annotations stands behind `TYPE_CHECKING`, written out because `typing` alone takes 3 ms, and what few jars
need is imported where they do.
"""
