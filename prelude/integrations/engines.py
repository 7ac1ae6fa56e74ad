"""The shared part of the clients: both kinds of engine behind one interface, and System One over either."""

from __future__ import annotations

from typing import Any

from prelude.api.engine import AsyncEngine, Engine
from prelude.errors import ConfigError, shown
from prelude.systemone import SystemOne


def system_one(given: Any, **options: Any) -> SystemOne:
    """Return ``given`` if it is one already, such as a traced one, else one over an engine of either kind."""
    if not isinstance(given, SystemOne):
        return SystemOne(given, **options)
    if options:
        raise ConfigError(f"{', '.join(options)}: options of a SystemOne are given where it is made")
    return given


class Engines:
    """``sync`` and ``awaited`` run on the same model. The caller closes the engine that it gave."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"{shown(engine)} is not an Engine or an AsyncEngine")
        self._given = engine
        self.awaited = engine if isinstance(engine, AsyncEngine) else AsyncEngine(engine)

    @property
    def sync(self) -> Engine:
        return self._given.engine if isinstance(self._given, AsyncEngine) else self._given
