"""Ray Data: a dataset of rows in, the same rows with typed result columns out.

Ray Data restarts an actor that died and runs its task again (``max_restarts`` and ``max_task_retries`` are -1 there
unless they are given). A task's blocks are numbered, so blocks that had come out before are not taken twice. That
needs equal blocks of both runs, which the deterministic mode gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prelude.api.windows import WINDOW_ROWS
from prelude.bulk.batches import BatchScorer, as_arrow

if TYPE_CHECKING:
    from ray.data import Dataset


class Scorer(BatchScorer):
    """The callable of ``Dataset.map_batches``: see ``BatchScorer`` for the arguments.

        dataset.map_batches(
            Scorer,
            fn_constructor_args=[form],
            fn_constructor_kwargs={"threads": 1},
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=1,
            batch_format="pyarrow",
            batch_size=1024,
        )

    Takes batches as pyarrow, pandas or dictionaries of numpy arrays, and returns ``pyarrow.Table``.
    """

    def __call__(self, batch: Any) -> Any:
        return self.arrow(as_arrow(batch))


def score(
    dataset: Dataset,
    form: Mapping[str, Any] | str,
    model: str | None = None,
    *,
    replicas: int | tuple[int, int] = 1,
    threads: int = 1,
    gpus: float = 0,
    batch_rows: int = WINDOW_ROWS,
    remote: Mapping[str, Any] | None = None,
    **scorer: Any,
) -> Dataset:
    """``dataset`` with the result columns of ``form``. ``scorer``: further keywords of ``Scorer``.

    ``replicas``    actors, each with an engine; a pair is the least and the most of a pool that grows with its queue
    ``threads``     of each, which are also the CPUs that Ray reserves for it. ``gpus``: GPUs of each
    ``batch_rows``  rows of a call, which is also the window within which shared beginnings are computed once
    ``remote``      further options of the actors (``resources``, ``max_restarts``, ...)

    The tasks that read the dataset need CPUs too: leave at least one beside ``replicas * threads``, or the pool waits
    for its input without end.
    """
    from ray.data import ActorPoolStrategy

    pool = (
        ActorPoolStrategy(size=replicas)
        if isinstance(replicas, int)
        else ActorPoolStrategy(min_size=replicas[0], max_size=replicas[1])
    )
    if gpus:
        remote = {"num_gpus": gpus, **(remote or {})}
    return dataset.map_batches(
        Scorer,
        fn_constructor_args=[form, model],
        fn_constructor_kwargs={"threads": threads, "window": batch_rows, **scorer},
        compute=pool,
        num_cpus=threads,
        batch_format="pyarrow",
        batch_size=batch_rows,
        **(remote or {}),
    )
