"""The bar of a run over a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from prelude.api.bar import ProgressCallback, RowBar
from prelude.bulk.rows import Position


class FileBar(RowBar):
    """How much of the file is done, and the new rows in words."""

    def __init__(self, told: bool | ProgressCallback | None, position: Position) -> None:
        super().__init__(told, position.total, position.unit)
        self._position = position
        self._began = time.monotonic()

    def end_window(self, rows: int, results: Mapping[int, Any]) -> None:
        if not self.rows:  # rows of an earlier run do not count to this one's rate
            self.done = self._position.passed
            if self._bar is not None:
                self._bar.initial = self._bar.n = self._bar.last_print_n = self.done
        super().end_window(rows, results)

    def words(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-3)
        return f"{self.rows:,} rows, {self.rows / seconds:,.0f} rows/s, {super().words()}"

    def ended(self, rows: int) -> int:
        return self._position.read - self.done
