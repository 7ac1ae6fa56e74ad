"""Tests of ``engine.map`` and ``prelude score``."""
