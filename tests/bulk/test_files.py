"""Files that are not in their format: the error names the file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from prelude.bulk.files import Table
from prelude.errors import BulkError
from prelude.tools.cli import main


def spoilt(data: bytes, at: int) -> bytes:
    """``data`` with 40 other bytes from ``at`` on."""
    return data[:at] + bytes(byte ^ 0x5A for byte in data[at : at + 40]) + data[at + 40 :]


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    return [f"text {rng.random()}" for _ in range(count)]


LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts(3000))
FIELDS = "\n".join(["text", *texts(3000)]).encode()
MALFORMED = {
    "no gzip.csv.gz": b"text,id\nhello,1\n", "cut.csv.gz": gzip.compress(FIELDS)[:12],
    "spoilt.csv.gz": spoilt(gzip.compress(FIELDS), 2000), "spoilt.jsonl.gz": spoilt(gzip.compress(LINES), 2000),
    "two.csv": b"text,text\na,b\n", "none.parquet": b"PAR1 and no more",
}  # fmt: skip


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
    source.write_text("text\na\n", encoding="utf-8")
    options = ["--text-column", "text", "--noul", "q=Is it?", "--no-progress", "--journal", str(tmp_path / "journal")]
    assert main(["score", str(source), "fullstore://out.jsonl", *options]) != 0
    assert "fullstore://out.jsonl: the bucket has no room" in capsys.readouterr().err


# ------------------------------------------------------------------ CSV and JSON lines
def rows_of(path: Path, data: bytes) -> list[Any]:
    """Of each row: its columns, or its problem."""
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return [row.problem or dict(row) for row in Table.of(str(path)).rows()]


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.csv", "in.csv.gz"])
def test_a_byte_order_mark_is_read_over(tmp_path: Path, name: str) -> None:
    data = b'{"a": "1"}\n{"a": "2"}\n' if "jsonl" in name else b"a\n1\n2\n"
    assert rows_of(tmp_path / name, b"\xef\xbb\xbf" + data) == [{"a": "1"}, {"a": "2"}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'a,b\n1,2\n"3,4\n5,6\n', "line 3: a quote of this record is open at the end of the file"),
        (b'a,b\n1,2\n"3', "line 3: a quote"), (b'a,b\n1,"x\ny\n', "line 2: a quote"),
        (b'a,b\n1,2\n"3"x,4\n5,6\n', "line 3: the record that begins here is not CSV"),
        (b'a,b\n"open,2\n3,4\n"5",6\n', "line 2: the record that begins here is not CSV"),
        (b'"a,b\n1,2\n', "line 1: a quote"), (b"", "the file is empty"), (b"\n\n", "the file is empty"),
        (b"a,\xff\n1,2\n", "line 1: the header"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz"])
def test_csv_without_known_ends_of_rows_is_refused(tmp_path: Path, text: bytes, says: str, name: str) -> None:
    with pytest.raises(BulkError, match=re.escape(f"{tmp_path / name}: {says}")):
        rows_of(tmp_path / name, text)


@pytest.mark.parametrize(
    "long",
    [
        b"x" * 800, b'"' + b"x" * 800 + b'"', b'"' + b'x, ""\r\n' * 60 + b'"', b'"' + b"x, y\n" * 600 + b'"',
        b'"' + b"\n" * 60 + b"y" * 380 + b'"', b"x" * 399 + b'"' + b"y" * 399,
        b'"' + b"x" * 397 + b'""' + b"y" * 399 + b'"', ("é" * 450).encode(),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_record_that_is_too_long_is_an_error_of_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bytes, end: bytes
) -> None:
    monkeypatch.setattr("prelude.bulk.texts.MAX_LINE", 400)
    before = csv.field_size_limit(1)  # a process may have any; 800 is enough
    lines = [b"a,b", b"1,2", long + b",2", b'"3",4', b"5,6"]
    found = rows_of(tmp_path / "in.csv", end.join(lines))
    assert found == [
        {"a": "1", "b": "2"},
        "line 3: longer than 400 characters",
        {"a": "3", "b": "4"},
        {"a": "5", "b": "6"},
    ]
    assert rows_of(tmp_path / "last.csv", end.join(lines[:3])) == found[:2] and csv.field_size_limit(before) == 800
    rows = rows_of(tmp_path / "in.jsonl", b'{"a": 1}\n{"a": "' + long.replace(b"\n", b" ") + b'"}\n{"a": 2}')
    assert rows == [{"a": 1}, "line 2: longer than 400 bytes", {"a": 2}]
    with pytest.raises(BulkError, match="line 1: the header is too long"):
        rows_of(tmp_path / "header.csv", long + b",b" + end + b"1,2")


@pytest.mark.parametrize("text", [b'a\n"' + b"x\n" * 500, b"a\n" + b"," * 500 + b"\n1\n"])
def test_a_record_that_has_no_end_takes_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr("prelude.bulk.texts.MAX_LINE", 100)
    with pytest.raises(BulkError, match="line 2: "):
        rows_of(tmp_path / "in.csv", text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"a": NaN}', "NaN is not a finite number"), (b'{"a": [-Infinity]}', "-Infinity is not a finite number"),
        (b'{"a": 1e999}', "1e999 is not a finite number"), (b'{"a": 1, "a": 2}', "the key 'a' appears twice"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested too deeply"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "not JSON"), (b'{"a": "\\udc00"}', "half of a surrogate pair"),
        (b'{"\\ud83d": 1}', "half of a surrogate pair"), (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'["a"]', "is not an object"),
    ],
)  # fmt: skip
def test_a_json_line_that_is_no_row_is_an_error_of_its_row(tmp_path: Path, line: bytes, says: str) -> None:
    many = b'\n{"a": [' + b"0," * 300_000 + b"0]}\n"
    found = rows_of(tmp_path / "in.jsonl", b'{"a": "\\ud83d\\ude00"}\n' + line + many)
    assert [found[0], found[2]] == [{"a": "\U0001f600"}, {"a": [0] * 300_001}]
    assert found[1].startswith("line 2: ") and says in found[1] and len(found[1]) < 300


# ------------------------------------------------------------------ one file under two names
SAME = ["./in.csv", "sub/../in.csv", "link.csv", "folder/in.csv", "second.csv", "file://{}/in.csv"]


@pytest.mark.parametrize("name", SAME)
def test_the_input_is_neither_output_nor_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if "://" in name:
        pytest.importorskip("fsspec", reason="fsspec is not installed")
    text = "text\n\xff" if name == "link.csv" else "text\na\n"
    (tmp_path / "in.csv").write_text(text, "latin-1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.csv").symlink_to("in.csv")
    (tmp_path / "folder").symlink_to(".")
    (tmp_path / "second.csv").hardlink_to(tmp_path / "in.csv")
    monkeypatch.chdir(tmp_path)
    other = name.format(tmp_path)
    options = ["--text-column", "text", "--noul", "q=Is it?", "--no-progress", "--overwrite", "--restart"]
    assert main(["score", "in.csv", other, *options]) == 2
    assert "the input and the output are one file" in capsys.readouterr().err
    assert main(["score", other, "in.csv", *options]) == 2
    assert "the input and the output are one file" in capsys.readouterr().err
    if "://" not in name:
        assert main(["score", "in.csv", "out.csv", "--journal", other, *options]) == 2
        assert "the input and the journal are one file" in capsys.readouterr().err
        assert main(["score", "in.csv", "out.csv", "--journal", "sub/../out.csv", *options]) == 2
        assert "the output and the journal are one file" in capsys.readouterr().err
    assert (tmp_path / "in.csv").read_text("latin-1") == text and not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("taken", ["the output", "the journal"])
def test_the_task_is_neither_output_nor_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: str
) -> None:
    source, task, target = tmp_path / "in.csv", tmp_path / "task.jsonl", tmp_path / "out.jsonl"
    source.write_text("text\na\n", encoding="utf-8")
    said = json.dumps({"state": "{text}", "questions": {"ok": {"question": "Is it?"}}})
    task.write_text(said, encoding="utf-8")
    names = [str(task)] if taken == "the output" else [str(target), "--journal", str(task)]
    assert main(["score", str(source), *names, "--task", str(task), "--overwrite", "--restart", "--no-progress"]) == 2
    assert f"{taken} and the task are one file" in capsys.readouterr().err
    assert task.read_text(encoding="utf-8") == said


def test_an_url_is_one_file_under_two_spellings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with fsspec.open("memory://same/in.csv", "wt") as file:
        file.write("text\na\n")
    options = ["--text-column", "text", "--noul", "q=Is it?", "--journal", str(tmp_path / "journal")]
    assert main(["score", "memory://same/in.csv", "memory:///same/in.csv", *options]) == 2
    assert "are one file" in capsys.readouterr().err
