"""The bar of a map: rows, rows a second, the share of prompt tokens that the cache had, time left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from prelude.terminal.progress import Progress

ProgressCallback: TypeAlias = Callable[[int, int | None], object]  # rows that ended, and all if known


class RowBar(Progress):
    """Show ``Progress`` of rows, which end a window at a time."""

    def __init__(self, told: bool | ProgressCallback | None, total: int | None, unit: str = "row") -> None:
        super().__init__(told, total, unit)
        self.rows = self.prompt_tokens = self.cached_tokens = 0

    def end_window(self, rows: int, results: Mapping[int, Any]) -> None:
        """Count a window of ``rows`` that has ended. ``results``: those of its tasks."""
        for result in results.values():
            stats = getattr(result, "stats", None)
            if stats is not None:
                self.prompt_tokens += stats.prompt_tokens
                self.cached_tokens += stats.cached_tokens
        self.rows += rows
        if self._bar is not None:
            self._bar.set_postfix_str(self.words(), refresh=False)
        self.advance(self.ended(rows))

    def words(self) -> str:
        return f"cache {self.hit_rate:.0%}"

    def ended(self, rows: int) -> int:
        """Return by how much the bar moves then."""
        return rows

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were taken from the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def length(rows: Any) -> int | None:
    """Return the number of rows, if they tell it."""
    try:
        return len(rows)
    except TypeError:
        return None
