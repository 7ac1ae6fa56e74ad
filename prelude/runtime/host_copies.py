"""Host memory for blocks that leave the KV pool: whether an engine may have it, and its copies.

KvPool ── copy_out, copy_in: whether the copy was made ──▶ HostCopies ──▶ the executor's HostBlocks
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prelude.errors import ConfigError, InsufficientMemory
from prelude.scheduling.lease import KvPool
from prelude.values.arrays import I32
from prelude.values.config import EngineConfig

if TYPE_CHECKING:
    from prelude.execution.executor import Executor
    from prelude.execution.host_blocks import HostBlocks
    from prelude.runtime.core import EngineCore

log = logging.getLogger("prelude.engine")


class HostCopies:
    """Copies of one engine. A failure is logged once; the tokens concerned are computed again. ``blocked`` is told
    the seconds of each copy."""

    def __init__(self, blocks: HostBlocks) -> None:
        self.blocks = blocks
        self.blocked: Callable[[float], None] | None = None
        self._said = False

    def report_to(self, core: EngineCore) -> None:
        """Count the seconds of the copies as those of the core's executor."""
        self.blocked = core.stepper.blocked

    def copy_out(self, blocks: I32, entries: I32) -> bool:
        return self._made(self.blocks.copy_out, blocks, entries)

    def copy_in(self, entries: I32, blocks: I32) -> bool:
        return self._made(self.blocks.copy_in, entries, blocks)

    def _made(self, copy: Callable[[I32, I32], None], first: I32, second: I32) -> bool:
        began = time.perf_counter()
        try:
            copy(first, second)
        except BaseException as error:
            if not self._said:
                self._said = True
                log.warning(
                    "copying %d KV blocks between the pool and host memory failed; their tokens are computed again "
                    "(said once; stats()['host_kv_failed'] goes on counting)",
                    len(first),
                    exc_info=error,
                )
            return False
        finally:
            if self.blocked is not None:
                self.blocked(time.perf_counter() - began)
        return True


def keep_on_host(pool: KvPool, executor: Executor, config: EngineConfig) -> HostCopies:
    """Gives ``pool`` the host memory of ``config.host_kv_bytes``. ``ConfigError`` if this executor cannot have it,
    or the bytes do not hold a block."""
    limits = executor.limits()
    make = getattr(executor, "host_blocks", None)
    if make is None or not limits.kv_bytes_per_token:
        raise ConfigError(f"host_kv_bytes: this executor ({limits.device}) keeps no KV blocks in host memory")
    entries = config.host_entries(limits.kv_bytes_per_token * limits.block_size)
    try:
        copies = HostCopies(make(entries))
    except (MemoryError, RuntimeError) as error:  # a CUDA build of torch raises RuntimeError for pinned memory
        raise InsufficientMemory(
            f"host_kv_bytes={config.host_kv_bytes}: the system does not give so much host memory; lower it",
            needed=config.host_kv_bytes,
            available=0,
        ) from error
    pool.keep_on_host(entries, config.expert.host_kv_tokens, copies.copy_out, copies.copy_in)
    return copies
