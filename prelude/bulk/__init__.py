"""Many rows: ``engine.map`` over any iterable, and ``prelude score`` from a file to a file."""
