"""``prelude.ray.Scorer`` on actors of a real Ray."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from prelude import Engine, EngineConfig
from prelude.bulk.form import Form
from prelude.errors import BulkError
from tests.ray.forms import FORM, ROWS

ray_data = pytest.importorskip("ray.data", reason="ray[data] is not installed")

pytestmark = pytest.mark.usefixtures("cluster")


def by_a_plain_engine(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    form = Form(FORM)
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as engine:
        names = [column.name for column in form.columns(())]
        return [{**one.row, **dict.fromkeys(names), **form.values(one)} for one in engine.map(form.task, rows)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_actor_that_is_killed_is_replaced_and_no_row_is_lost_or_doubled(tmp_path: Path, when: str) -> None:
    """SIGKILL of one of two actors in the middle of the run, before or after it computed its batch. All rows come out
    once, with the bits of a plain engine."""
    from prelude.ray import Scorer

    class Killed(Scorer):
        """Kills its own process in its second call, once in all."""

        calls = 0

        def __call__(self, batch: Any) -> Any:
            self.calls += 1
            found = None if when == "before" else super().__call__(batch)
            if self.calls == 2:
                try:
                    os.close(os.open(tmp_path / "killed", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            Path(tmp_path, f"{os.getpid()}-{self.calls}").touch()
            return found or super().__call__(batch)

    scored = ray_data.from_items(ROWS, override_num_blocks=8).map_batches(
        Killed,
        fn_constructor_args=[FORM],
        fn_constructor_kwargs={"threads": 1},
        compute=ray_data.ActorPoolStrategy(size=2),
        num_cpus=1,
        batch_format="pyarrow",
        batch_size=8,
    )
    found = sorted(scored.take_all(), key=lambda row: row["id"])
    assert (tmp_path / "killed").exists()
    assert len({path.name.split("-")[0] for path in tmp_path.glob("*-*")}) >= 2  # processes
    assert found == by_a_plain_engine(ROWS)


@pytest.mark.parametrize("form", ["pyarrow", "pandas", "numpy"])
def test_each_format_of_a_batch_gives_the_same_columns(form: str) -> None:
    from prelude.ray import Scorer

    rows = [row for row in ROWS if row["text"] is not None][:6]
    scored = ray_data.from_items(rows).map_batches(
        Scorer, fn_constructor_args=[FORM], compute=ray_data.ActorPoolStrategy(size=1), num_cpus=1, batch_format=form
    )
    found = sorted(scored.take_all(), key=lambda row: row["id"])
    assert [row["language"] for row in found] == [row["language"] for row in by_a_plain_engine(rows)]
    assert all(row["error"] is None for row in found)


def test_one_call_scores_a_dataset_and_a_bad_row_is_a_value(tmp_path: Path) -> None:
    from prelude.ray import score

    path = tmp_path / "form.json"
    path.write_text(json.dumps(FORM), encoding="utf-8")
    found = score(ray_data.from_items(ROWS[:12]), str(path), replicas=1, prefix="p_").take_all()
    bad = [row for row in found if row["text"] is None]
    assert len(found) == 12 and bad and all("column 'text' is null" in row["p_error"] for row in bad)
    assert all(row["p_error"] is None and row["p_prompt_tokens"] > 0 for row in found if row["text"] is not None)


def test_a_form_that_no_row_could_be_served_with_ends_the_job() -> None:
    from prelude.ray import Scorer

    with pytest.raises(BulkError, match="no row could be served"):
        Scorer({**FORM, "questions": {"a": {"question": "Which?", "labels": [""]}}})
