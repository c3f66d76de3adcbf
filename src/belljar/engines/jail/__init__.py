"""The embedded engine: Linux namespaces, nothing to install. `launcher.py` has the theory of operation."""
