"""Rows of files: ``prelude score`` from a file to a file, and batches of tables for other engines. No request enters
but through ``engine.map``."""
