"""Prelude on Ray: ``Scorer`` for Ray Data, ``deployment`` for Ray Serve.

    prelude.ray.Scorer              the class for ``Dataset.map_batches`` on a pool of actors
    prelude.ray.score               the same in one call: a dataset in, a dataset out
    prelude.ray.deployment          an application of Ray Serve: an engine in each replica
    prelude.ray.PrefixAffineRouter  Ray Serve's request router by cached prefixes

pip install 'prelude-engine[ray]' (Ray 2.60). docs/FLEET.md shows each in use. The names are imported at first use:
``Scorer`` needs neither Ray Serve nor its requirements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prelude.ray.data import Scorer, score
    from prelude.ray.router import PrefixAffineRouter
    from prelude.ray.serving import Replica, deployment

_PLACES = {
    "Scorer": "data",
    "score": "data",
    "PrefixAffineRouter": "router",
    "Replica": "serving",
    "deployment": "serving",
}

__all__ = ["PrefixAffineRouter", "Replica", "Scorer", "deployment", "score"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
