"""Run an agent's code under glass: sealed, limited, watched, and with a receipt."""

__version__ = "0.1.0"
