"""Ray Serve's request router by cached prefixes: ``request_router_class="prelude.ray.router:PrefixAffineRouter"``.

The measure is ``prelude.integrations.affinity``: the reports of the replicas about their caches
(``record_routing_stats``) and the requests that this router sent them. Within a group of replicas that are equally
good, Serve chooses the one with the shortest queue; a replica with ``max_ongoing_requests`` is passed over for the
next group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from prelude.integrations.affinity import Affinity, chain_of_task
from prelude.tasks import TaskOf

WAITED = "waited"  # the keyword by which a replica gets the seconds that its request waited here
METHODS = frozenset(["run", "run_many"])  # of ``Replica``: they take it


class PrefixAffineRouter(RequestRouter):
    """Sends a request to the replica that has the longest part of its prompt's beginning in its cache, within a bound
    of the replica's load. A request without a task in its first argument goes to the shortest queue."""

    def initialize_state(self, slack: float = 0.25, least_load: int = 8, trust_s: float = 30.0) -> None:
        """``request_router_kwargs``. A replica takes requests for its cache's sake up to ``1 + slack`` times the mean
        of requests in flight, or ``least_load`` if that is more. ``trust_s``: seconds after which a request that
        was sent no longer counts as cached unless the replica reports it."""
        self._affinity: Affinity[ReplicaID] = Affinity(slack=slack, least_load=least_load, trust=trust_s)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._affinity.keep({one.replica_id for one in replicas})
        for one in replicas:
            self._affinity.reported(one.replica_id, (one.routing_stats or {}).get("prefixes", ()))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._affinity.keep(self.curr_replicas.keys())

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        if pending_request.metadata.call_method in METHODS:
            pending_request.kwargs[WAITED] = max(0.0, time.time() - pending_request.created_at)
        chain = chain_of_request(pending_request)
        by_name = {one.replica_id: one for one in candidate_replicas}
        now = time.monotonic()
        groups = self._affinity.ranked(chain, list(by_name), self._in_flight, now)
        if len(groups) > 1 and len(groups[0]) == 1:  # so that the next one of this prefix, which may be here, follows
            self._affinity.sent(chain, groups[0][0], now)
        return [[by_name[name] for name in group if name in by_name] for group in groups]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._affinity.sent(chain_of_request(pending_request), replica_id, time.monotonic())

    def _in_flight(self, replica: ReplicaID) -> int:
        return self.replica_queue_len_cache.get(replica) or 0


def chain_of_request(request: PendingRequest) -> tuple[int, ...]:
    task = request.args[0] if request.args else None
    if isinstance(task, Sequence) and not isinstance(task, str) and task:
        task = task[0]
    return chain_of_task(task) if isinstance(task, TaskOf) else ()
