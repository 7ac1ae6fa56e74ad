"""The figures of a run: latency, throughput, reuse, starvation, fairness. As a value, as JSON, as a table."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from prelude.errors import DeadlineExceeded, QueueFull, RequestCancelled, RequestTooLarge
from prelude.records import asdict, dataclass, field
from prelude.scheduling.cost import Work
from prelude.simulation.costs import Machine
from prelude.terminal.tables import text_table

if TYPE_CHECKING:
    from prelude.simulation.replica import Replica, SimulatedRequest

_ENDS: tuple[tuple[type[BaseException], str], ...] = (
    (RequestCancelled, "cancelled"),
    (DeadlineExceeded, "expired"),
    (QueueFull, "refused"),
    (RequestTooLarge, "refused"),
)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of finished requests. ``wait``: from coming to the first step."""

    requests: int
    mean: float
    p50: float
    p99: float
    longest: float
    mean_wait: float
    longest_wait: float

    @classmethod
    def of(cls, latency: npt.NDArray[np.float64], wait: npt.NDArray[np.float64]) -> Latency:
        """P50 and P99 are latencies that some request had: the smallest that at least that share did not exceed."""
        if not len(latency):
            return cls(0, *[math.nan] * 6)
        p50, p99 = np.quantile(latency, [0.5, 0.99], method="inverted_cdf")
        return cls(
            len(latency),
            float(latency.mean()),
            float(p50),
            float(p99),
            float(latency.max()),
            float(wait.mean()),
            float(wait.max()),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """``hit_rate``: of the prompt tokens of OneShot requests and first chunks, the share that the prefix cache had;
    ``folded_rate``: the share that another row of the same step computed.

    ``overtaken``: the most tokens computed between the arrival of a request and that of a later one which started
    before it; ``starvation``: the same over the bound that the policy states (1 and less is within), NaN if it
    states none. ``fairness``: Jain's index over users (or tenants) of their mean progress, which is the seconds that
    a request takes alone on an idle machine with an empty cache over those it took: 1 if all are slowed down
    alike.
    """

    machine: str
    replicas: int
    seconds: float  # virtual, until the last end
    ends: dict[str, int]
    latency: Latency
    by_task: dict[str, Latency]
    first_token: Latency  # of generated text
    throughput: float  # finished requests a second
    prompt_tokens: int
    computed_tokens: int
    hit_rate: float
    folded_rate: float
    steps: int
    busy: float  # share of the replicas' time spent in steps
    preemptions: int
    deferrals: int
    evictions: int
    overtaken: int
    starvation: float
    fairness: float
    users: int
    label: str = ""
    retried: int = 0  # requests that a replica's failure lost, which were asked again

    def json(self) -> dict[str, Any]:
        numbers: dict[str, Any] = _finite(asdict(self))
        return numbers


def _finite(value: Any) -> Any:
    """NaN has no place in JSON."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def jain(shares: Sequence[float]) -> float:
    """(sum x) ** 2 / (n * sum x ** 2): 1 for equal shares, 1 / n if one has all (Jain, Chiu, Hawe 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else math.nan


@dataclass(slots=True)
class Recorder:
    """Keeps eight numbers a request, and nothing else of it."""

    machine: Machine
    ends: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    prompt_tokens: int = 0
    _latency: array[float] = field(default_factory=lambda: array("d"))
    _wait: array[float] = field(default_factory=lambda: array("d"))
    _first: array[float] = field(default_factory=lambda: array("d"))
    _tasks: array[int] = field(default_factory=lambda: array("b"))
    _task_names: list[str] = field(default_factory=list)
    _progress: dict[str | None, list[float]] = field(default_factory=dict)  # user: sum, count

    def ended(self, simulated: SimulatedRequest) -> None:
        name = _end_name(simulated.error)
        self.ends[name] = self.ends.get(name, 0) + 1
        self.seconds = max(self.seconds, simulated.ended)
        if name != "finished":
            return
        arrival = simulated.arrival
        latency = simulated.ended - simulated.came
        self._latency.append(latency)
        self._wait.append(simulated.started - simulated.came)
        self._first.append(simulated.first - simulated.came)  # NaN if no text was asked for
        if arrival.task not in self._task_names:
            self._task_names.append(arrival.task)
        self._tasks.append(self._task_names.index(arrival.task))
        self.prompt_tokens += arrival.prompt_tokens
        progress = self._progress.setdefault(arrival.user or arrival.tenant, [0.0, 0.0])
        progress[0] += (
            self._alone(arrival.prompt_tokens, len(simulated.request.output) if simulated.request else 0) / latency
        )
        progress[1] += 1

    def _alone(self, prompt: int, output: int) -> float:
        cost = self.machine.cost
        seconds = cost.seconds(Work.prompt(prompt))
        if output > 1:
            middle = prompt + output // 2
            seconds += (output - 1) * cost.seconds(Work(1, middle, 1, middle))
        return seconds

    def report(self, replicas: Sequence[Replica], count: int) -> Report:
        """``count``: replicas at a time; ``replicas`` has dead ones too."""
        latency, wait, first = np.array(self._latency), np.array(self._wait), np.array(self._first)
        tasks = np.array(self._tasks)
        by_task = {
            name: Latency.of(latency[tasks == number], wait[tasks == number])
            for number, name in enumerate(self._task_names)
        }
        generated = ~np.isnan(first)
        stats = [one.core.stats for one in replicas]
        computed = sum(s.prefill_tokens + s.decode_tokens for s in stats)
        reused, folded = sum(s.prefix_hit_tokens for s in stats), sum(s.folded_tokens for s in stats)
        asked = max(1, sum(s.prefill_tokens for s in stats) + reused + folded)
        seconds = self.seconds
        return Report(
            machine=self.machine.name,
            replicas=count,
            seconds=seconds,
            ends=dict(sorted(self.ends.items())),
            latency=Latency.of(latency, wait),
            by_task=by_task,
            first_token=Latency.of(first[generated], wait[generated]),
            throughput=len(latency) / seconds if seconds else math.nan,
            prompt_tokens=self.prompt_tokens,
            computed_tokens=computed,
            hit_rate=reused / asked,
            folded_rate=folded / asked,
            steps=sum(one.steps for one in replicas),
            busy=sum(s.forward_seconds for s in stats) / (seconds * count) if seconds else math.nan,
            preemptions=sum(s.preemptions for s in stats),
            deferrals=sum(s.deferrals for s in stats),
            evictions=sum(one.core.pool.evictions for one in replicas),
            overtaken=max(one.overtaken for one in replicas),
            starvation=max(one.starvation for one in replicas),
            fairness=jain([total / count for total, count in self._progress.values()]),
            users=len(self._progress),
        )


def _end_name(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    return next((name for kind, name in _ENDS if isinstance(error, kind)), "failed")


def table(reports: Iterable[Report], title: str = "") -> str:
    header = ("", "mean", "P50", "P99", "longest", "done/s", "hit", "folded", "overtaken", "starved", "fair", "busy")
    rows = []
    for report in reports:
        latency = report.latency
        rows.append(
            (
                report.label,
                *(seconds_text(value) for value in (latency.mean, latency.p50, latency.p99, latency.longest)),
                _text(report.throughput, ".4g"),
                f"{report.hit_rate:.1%}",
                f"{report.folded_rate:.1%}",
                f"{report.overtaken:,}",
                _text(report.starvation, ".2f"),
                _text(report.fairness, ".3f"),
                _text(report.busy, ".0%"),
            )
        )
    return text_table(rows, header=header, right=range(1, len(header)), title=title)


def seconds_text(seconds: float) -> str:
    return _text(seconds * 1e3, ".3g", " ms") if seconds < 1 else _text(seconds, ".3g", " s")


def _text(value: float, form: str, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"
