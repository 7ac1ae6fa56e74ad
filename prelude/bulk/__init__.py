"""Many rows: ``engine.map`` over any iterable, and ``prelude score`` from a file to a file."""

WINDOW_ROWS = 1024
"""Rows that run together, unless told otherwise."""
