"""The engine's own planning against a cost model, in virtual time. No model, no accelerator.

    trace ──▶ router ──▶ replica: inbox, queues, policies, trie, ledger, plan, pack, postprocess (all real)
                            └─ executor: advances the clock by the cost of the batch

docs/SIMULATOR.md says how to use it.
"""

from prelude.simulation.costs import LinearCost, Machine, machine
from prelude.simulation.fleet import ClosedLoop, Fleet, simulate
from prelude.simulation.report import Report
from prelude.simulation.traces import Arrival

__all__ = ["Arrival", "ClosedLoop", "Fleet", "LinearCost", "Machine", "Report", "machine", "simulate"]
