"""The life of one run, from request to result."""
