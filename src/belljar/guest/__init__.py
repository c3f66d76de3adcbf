"""The process inside the jar, and what it shares with the host. Standard library only."""
