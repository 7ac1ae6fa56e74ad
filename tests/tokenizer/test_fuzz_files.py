"""The fuzzer of tokenizer files, for a few seconds; for longer: python -m tests.fuzz_tokenizer_files --minutes 60."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("regex")


@pytest.mark.long
@pytest.mark.fault(30)
def test_changed_files_end_in_ids_or_in_an_error_of_ours(tmp_path: Path) -> None:
    from tests.fuzz_tokenizer_files import CHUNK, run_chunk

    tried, found = run_chunk(1, tmp_path, compare=True)
    assert not found and tried == CHUNK
