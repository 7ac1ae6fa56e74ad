"""The engine's own planning against a cost model, in virtual time. No model, no accelerator.

    trace ──▶ router ──▶ replica: inbox, queues, policies, trie, ledger, plan, pack, postprocess (all real)
                            └─ executor: advances the clock by the cost of the batch

docs/SIMULATOR.md says how to use it.
"""

from prelude.simulation.compare import ABLATIONS, BASELINE, equal_p99, most_rate, run, sweep
from prelude.simulation.costs import MACHINES, LinearCost, Machine, RooflineCost, Shape, StepCost, machine, work_of
from prelude.simulation.fleet import ClosedLoop, Fleet, OpenLoop, simulate
from prelude.simulation.report import Latency, Report
from prelude.simulation.traces import Arrival, read_trace, write_trace
from prelude.simulation.workloads import WORKLOADS

__all__ = [
    "ABLATIONS",
    "BASELINE",
    "MACHINES",
    "WORKLOADS",
    "Arrival",
    "ClosedLoop",
    "Fleet",
    "Latency",
    "LinearCost",
    "Machine",
    "OpenLoop",
    "Report",
    "RooflineCost",
    "Shape",
    "StepCost",
    "equal_p99",
    "machine",
    "most_rate",
    "read_trace",
    "run",
    "simulate",
    "sweep",
    "work_of",
    "write_trace",
]
