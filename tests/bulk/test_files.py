"""Files that are not in their format: the error names the file."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from prelude.bulk.files import Table
from prelude.cli import main
from prelude.errors import BulkError


def spoilt(data: bytes, at: int) -> bytes:
    """``data`` with 40 other bytes from ``at`` on."""
    return data[:at] + bytes(byte ^ 0x5A for byte in data[at : at + 40]) + data[at + 40 :]


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    return [f"text {rng.random()}" for _ in range(count)]


LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts(3000))
FIELDS = "\n".join(["text", *texts(3000)]).encode()
MALFORMED = {
    "no gzip.csv.gz": b"text,id\nhello,1\n",
    "cut.csv.gz": gzip.compress(FIELDS)[:12],
    "spoilt.csv.gz": spoilt(gzip.compress(FIELDS), 2000),
    "spoilt.jsonl.gz": spoilt(gzip.compress(LINES), 2000),
    "two.csv": b"text,text\na,b\n",
    "none.parquet": b"PAR1 and no more",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_input_is_refused_by_its_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    source = tmp_path / name
    source.write_bytes(MALFORMED[name])
    options = ["--text-column", "text", "--noul", "q=Is it?", "--no-progress"]
    assert main(["score", str(source), str(tmp_path / "out.jsonl"), *options]) != 0
    assert f"{source}: " in capsys.readouterr().err


def test_a_corrupt_page_of_a_parquet_file_is_refused_by_its_name(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    source = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"text": texts(5000)}), source)
    source.write_bytes(spoilt(source.read_bytes(), 100))
    with pytest.raises(BulkError, match=r"rows\.parquet: "):
        list(Table.of(str(source)).rows())


def test_an_error_without_a_number_that_ends_the_output_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those of object stores are."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError("the bucket has no room")

    class Store(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]
        protocol = "fullstore"

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            return Full()

    fsspec.register_implementation("fullstore", Store, clobber=True)
    source = tmp_path / "in.csv"
    source.write_text("text\na\n")
    options = ["--text-column", "text", "--noul", "q=Is it?", "--no-progress", "--journal", str(tmp_path / "journal")]
    assert main(["score", str(source), "fullstore://out.jsonl", *options]) != 0
    assert "fullstore://out.jsonl: the bucket has no room" in capsys.readouterr().err
