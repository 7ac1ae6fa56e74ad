"""The attention backends: a registry by name, with the needs of each.

    batch ─▶ layout ─▶ a plan of the chosen backend ─▶ K and V written ─▶ its kernels, layer by layer

    cpu    runs         the native kernel: every row walks its own keys in order, and its bits stand alone
    cuda   flashinfer   levels of FlashInfer calls, prefill and decode with kernels of their own
           keys         a kernel of ours that walks explicit key lists: exact, and slow

``auto`` takes the first that serves; ``EngineConfig(attention=...)`` or, if that is
``auto``, the environment's ``PRELUDE_ATTENTION`` takes one by name. One that cannot serve is refused when the engine
is made. ``auto`` does without FlashInfer if it is missing or fails its trial, and says so in the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from prelude.errors import ConfigError, DeviceUnavailable
from prelude.records import dataclass

VARIABLE = "PRELUDE_ATTENTION"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The model and the mode that attention has to serve. ``element``: float32 or bfloat16."""

    head_dim: int
    element: str
    deterministic: bool


@dataclass(frozen=True, slots=True)
class Backend:
    """``lacks`` names the missing packages, ``refuses`` the reason why it cannot serve; None if it serves."""

    name: str
    device: str
    refuses: Callable[[Wanted], str | None] = lambda wanted: None
    lacks: Callable[[], str | None] = lambda: None


def _flashinfer(wanted: Wanted) -> str | None:
    from prelude.cuda.attention import HEAD_DIMS

    if wanted.element != "bfloat16":
        return f"it is built for bfloat16, not {wanted.element}"
    if wanted.head_dim not in HEAD_DIMS:
        return f"head_dim is {wanted.head_dim}; it is built for {', '.join(map(str, HEAD_DIMS))}"
    if wanted.deterministic:
        return "the bits of its rows depend on the prefixes that they share, and deterministic=True"
    return None


def _flashinfer_missing() -> str | None:
    from prelude.cuda.attention import missing

    return missing()


BACKENDS = (
    Backend("runs", "cpu"),
    Backend("flashinfer", "cuda", _flashinfer, _flashinfer_missing),
    Backend("keys", "cuda"),
)
NAMES = ("auto", *(backend.name for backend in BACKENDS))


def asked_for(setting: str) -> str:
    """``setting``, or if it is ``auto`` the value in the environment. ``ConfigError`` for a name that is none."""
    name, where = setting, "attention"
    if setting == "auto" and os.environ.get(VARIABLE):
        name, where = os.environ[VARIABLE], VARIABLE
    if name not in NAMES:
        raise ConfigError(f"{where}={name!r} is not one of {', '.join(NAMES)}")
    return name


def choose(setting: str, device: str, wanted: Wanted) -> str:
    """Return the backend that serves, by name. ``ConfigError`` if the one asked for is made for something else,
    ``DeviceUnavailable`` if it is not installed."""
    name = asked_for(setting)
    of_device = [backend for backend in BACKENDS if backend.device == device]
    if name == "auto":
        return next(backend.name for backend in of_device if backend.refuses(wanted) is None)
    backend = next(backend for backend in BACKENDS if backend.name == name)
    if backend.device != device:
        served = ", ".join(["auto", *(other.name for other in of_device)])
        raise ConfigError(
            f"attention={name!r} is a backend of device={backend.device!r}; on {device!r} it is {served}"
        )
    reason = backend.refuses(wanted)
    if reason is not None:
        raise ConfigError(f"attention={name!r} cannot serve here: {reason}; use attention='auto'")
    lack = backend.lacks()
    if lack is not None:
        raise DeviceUnavailable(f"attention={backend.name!r}: {lack}", missing=(lack,))
    return backend.name
