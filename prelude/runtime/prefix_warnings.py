"""Says once why prompts do not enter the prefix cache if the KV pool has no room for them."""

from __future__ import annotations

import logging

from prelude.scheduling.lease import KvPool
from prelude.scheduling.plan import Plan
from prelude.scheduling.queues import Queues

log = logging.getLogger("prelude.engine")


class PrefixWarnings:
    """Looks at plans; ``queues.not_kept`` counts. An engine warns twice at most: once for a prompt that is longer
    than the pool, once for a pool whose blocks are all in use or hold prefixes that were hit before."""

    def __init__(self, pool: KvPool, queues: Queues) -> None:
        self._pool, self._queues = pool, queues
        self.seen = 0  # of ``queues.not_kept``
        self._said: set[bool] = set()

    def look(self, plan: Plan) -> None:
        """Look at a plan that ``queues.not_kept`` has counted, before its rows run."""
        pool = self._pool
        self.seen = self._queues.not_kept
        room = pool.num_blocks * pool.block_size
        folded = {member for fold in plan.folds for member in fold.members[1:]}  # their leader keeps for them
        for at, row in enumerate(plan.oneshot):
            if at in folded or row.publish or row.request.cache == "never" or len(self._said) == 2:
                continue
            tokens = row.request.trunk
            longer = tokens // pool.block_size > pool.num_blocks
            if tokens // pool.block_size == row.skip // pool.block_size or longer in self._said:
                continue
            self._said.add(longer)
            why = "the prompt is longer" if longer else "its blocks are in use or hold prefixes that were hit before"
            log.warning(
                "a prompt of %d tokens is not kept in the prefix cache: the KV pool holds %d tokens, and %s; raise "
                "EngineConfig.kv_bytes or kv_blocks (said once; stats()['prefixes_not_kept'] goes on counting)",
                tokens,
                room,
                why,
            )
