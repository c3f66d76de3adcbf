"""Jars as containers of a Docker engine: needs the package aiodocker, extra `docker`."""
