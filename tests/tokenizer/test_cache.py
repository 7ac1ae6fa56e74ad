"""Tables in the cache directory: the same tokenizer from them, and nothing but time lost where they are not right."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prelude.tokenizer import Tokenizer, _core
from prelude.tokenizer.backends import cache as _cache
from prelude.tokenizer.backends import choice as _backends

from tests.tokenizer.shared import golden, golden_lines, shared, tokenizer_json

Files = Callable[[], list[Path]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_cache, "LEAST", 0)
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path, json_of: Callable[[str], str]) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json_of("byte-level"), encoding="utf-8")
    return path


def tables(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name != "key")


def is_used(path: Path, folder: Path) -> bool:
    """Whether a load takes the tables in the folder; a fresh look at it, as by another process."""
    return _cache.TableCache(folder).of_file(path) is not None


def assert_works(path: Path, folder: Path) -> None:
    """However the folder looks, the tokenizer is right; and after that its tables are in the folder again."""
    _cache._cache_in.cache_clear()
    ours, plain = Tokenizer.from_file(path, cache=folder), Tokenizer.from_file(path, cache=False)
    text = "Hello there, Ünïcödé café <mask> 12345"
    assert ours.encode(text).ids == plain.encode(text).ids
    assert is_used(path, folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_the_place_of_tables_does_not_block(folder: Path, file: Path) -> None:
    code = f"""
import os
from prelude.tokenizer import Tokenizer
from prelude.tokenizer.backends import cache as _cache
_cache.LEAST = 0
Tokenizer.from_file({str(file)!r}, cache={str(folder)!r})
[tables] = [name for name in os.listdir({str(folder)!r}) if name != "key"]
for name in (tables, "key"):
    os.remove(os.path.join({str(folder)!r}, name))
    os.mkfifo(os.path.join({str(folder)!r}, name))
    _cache._cache_in.cache_clear()
    print(len(Tokenizer.from_file({str(file)!r}, cache={str(folder)!r}).encode("Hello there").ids))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    whole = len(Tokenizer.from_file(file, cache=False).encode("Hello there").ids)
    assert ran.stdout.split() == [str(whole)] * 2, ran.stderr


def test_tables_give_the_same_tokenizer(
    folder: Path, name: str, json_of: Callable[[str], str], texts: list[str]
) -> None:
    made = json_of(name)
    plain, first = Tokenizer.from_str(made, cache=False), Tokenizer.from_str(made, cache=folder)
    assert len(tables(folder)) == 1 and _cache.TableCache(folder).of_bytes(made.encode()) is not None
    again = Tokenizer.from_str(made, cache=folder)
    assert again.backend == "native"
    for ours in (first, again):
        assert ours.to_str() == plain.to_str()
        assert ours.get_vocab() == plain.get_vocab()
        for text in texts:
            a, b = ours.encode(text), plain.encode(text)
            assert (a.ids, a.tokens, a.offsets, a.word_ids) == (b.ids, b.tokens, b.offsets, b.word_ids)
            assert ours.decode(a.ids) == plain.decode(b.ids)
            for parse in (True, False):
                assert np.array_equal(
                    ours.encode_array(text, parse_special=parse), plain.encode_array(text, parse_special=parse)
                )
        assert ours._core.unknown_id() == plain._core.unknown_id()


@pytest.mark.skipif(shared() is None, reason="the shared reference material is not here")
@pytest.mark.parametrize("family", ["bert-base-uncased", "clip", "mistral-v1", "qwen3", "whisper"])
def test_real_files_from_tables(family: str, folder: Path) -> None:
    data = tokenizer_json(family)
    _backends.load(data, _cache.TableCache(folder))
    core = _cache.TableCache(folder).of_bytes(data)
    assert core is not None
    for line in golden(family)[::5]:
        text = line["t"] if "t" in line else golden_lines()[line["k"]]
        ids, offsets, _ = core.encode_full(text)
        assert ids.tolist() == line["ids"] == core.encode_array(text).tolist(), text
        assert offsets.reshape(-1).tolist() == line["off"], text
        assert core.decode(ids, False) == line.get("dec", text)


def test_tables_lie_in_the_file_and_outlive_its_name(file: Path, folder: Path, texts: list[str]) -> None:
    plain, _ = Tokenizer.from_file(file, cache=False), Tokenizer.from_file(file, cache=folder)
    ours = Tokenizer.from_file(file, cache=folder)
    (path,) = tables(folder)
    maps = Path("/proc/self/maps")
    if maps.exists() and path.name not in maps.read_text(encoding="utf-8"):
        pytest.skip("the folder is on a file system whose files are read and not mapped")
    path.unlink()
    _cache.TableCache(folder)._write(path.name, b"others write it anew")  # as every writer does: under another name
    for text in texts:
        assert ours.encode(text).offsets == plain.encode(text).offsets
        assert ours.encode(text).ids == plain.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == plain.decode(plain.encode(text).ids)
    del ours
    gc.collect()
    if maps.exists():
        assert path.name not in maps.read_text(encoding="utf-8"), "the mapping goes with the tokenizer"


# ---- a wrong file is not used
def test_any_byte_that_changed_is_noticed(file: Path, folder: Path) -> None:
    Tokenizer.from_file(file, cache=folder)
    (path,) = tables(folder)
    content = path.read_bytes()
    places = sorted({*range(48), *range(48, len(content), 4099), len(content) - 1})
    for at in places:
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert not is_used(file, folder), at
    path.write_bytes(content)
    assert is_used(file, folder)
    path.write_bytes(changed)
    assert_works(file, folder)


@pytest.mark.parametrize("length", [0, 1, 39, 40, 100, 5000, -1, None])
def test_truncated_and_grown(file: Path, folder: Path, length: int | None) -> None:
    Tokenizer.from_file(file, cache=folder)
    (path,) = tables(folder)
    content = path.read_bytes()
    path.write_bytes(content + b"\0" if length is None else content[:length])
    assert not is_used(file, folder)
    assert_works(file, folder)


def test_written_with_another_key_or_by_another_build(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    for place in (folder, other):
        Tokenizer.from_file(file, cache=place)
    (path,), (foreign,) = tables(folder), tables(other)
    assert path.name != foreign.name
    path.write_bytes(foreign.read_bytes())  # sound, but made with another key
    assert not is_used(file, folder)
    assert_works(file, folder)
    build = tmp_path / "build"
    build.write_bytes(b"another build")
    monkeypatch.setattr(_core, "__file__", str(build))
    assert not is_used(file, folder)
    assert_works(file, folder)
    assert len(tables(folder)) == 2


def test_a_file_of_another_tokenizer_is_not_taken(file: Path, folder: Path, json_of: Callable[[str], str]) -> None:
    Tokenizer.from_file(file, cache=folder)
    (path,) = tables(folder)
    Tokenizer.from_str(json_of("template"), cache=folder)
    (other,) = (p for p in tables(folder) if p != path)
    other.replace(path)
    assert not is_used(file, folder)
    assert_works(file, folder)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner here")
def test_folders_that_others_may_write(file: Path, folder: Path, tmp_path: Path) -> None:
    Tokenizer.from_file(file, cache=folder)
    (path,) = tables(folder)
    path.chmod(0o622)
    assert not is_used(file, folder)
    assert_works(file, folder)

    aside = path.rename(tmp_path / "aside")
    path.symlink_to(aside)
    assert not is_used(file, folder)
    assert_works(file, folder)
    assert not path.is_symlink()

    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        assert not is_used(file, folder)
        assert_works(file, folder)
        os.chown(folder / "key", 12345, -1)
        assert_works(file, folder)

    known = (folder / "key").read_bytes()
    (folder / "key").chmod(0o644)
    assert_works(file, folder)
    assert (folder / "key").read_bytes() != known, "others may have read it"
    for content in (b"", b"short", b"x" * 33):
        (folder / "key").write_bytes(content)
        assert_works(file, folder)

    folder.chmod(0o777)
    assert not is_used(file, folder)
    link = tmp_path / "link"
    folder.chmod(0o700)
    link.symlink_to(folder)
    assert not is_used(file, link)


def test_a_folder_that_cannot_be_written(file: Path, folder: Path, tmp_path: Path) -> None:
    for place in (file / "below a file", Path("/proc/none") if sys.platform == "linux" else file):
        assert Tokenizer.from_file(file, cache=place).encode("Hello").ids
        assert not is_used(file, place)
    folder.mkdir(mode=0o500)
    assert Tokenizer.from_file(file, cache=folder).encode("Hello").ids


# ---- many processes, and none
def test_concurrent_writers(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; from prelude.tokenizer import Tokenizer\n"
        "from prelude.tokenizer.backends import cache; cache.LEAST = 0\n"
        "for _ in range(5): print(Tokenizer.from_file(sys.argv[1], cache=sys.argv[2]).encode('Hello there').ids)"
    )
    command = [sys.executable, "-c", script, str(file), str(folder)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    shown = [process.communicate()[0].splitlines() for process in running]
    expected = str(Tokenizer.from_file(file, cache=False).encode("Hello there").ids)
    assert shown == [[expected] * 5] * 6
    assert len(tables(folder)) == 1  # and no temporary file is left
    assert is_used(file, folder)
    aside = (folder / "key").rename(folder.parent / "aside")
    monkeypatch.setattr(os, "urandom", lambda size: aside.rename(folder / "key") and bytes(size))
    assert is_used(file, folder), "the key of a process that is first stays"


def test_off_by_argument_and_by_the_environment(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRELUDE_TOKENIZER_CACHE", str(folder))
    Tokenizer.from_file(file, cache=False)
    assert not folder.exists()
    Tokenizer.from_file(file)
    assert is_used(file, folder)
    monkeypatch.setenv("PRELUDE_TOKENIZER_CACHE", "off")
    assert _cache.at(True) is None
    monkeypatch.delenv("PRELUDE_TOKENIZER_CACHE")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(folder / name))
    for platform, home in ("win32", folder / "LOCALAPPDATA"), ("linux", folder / "XDG_CACHE_HOME"):
        with monkeypatch.context() as there:
            there.setattr(sys, "platform", platform)
            found = _cache.at(True)
        assert found is not None and found._folder == home / "prelude" / "tokenizers"
    for home in ("", "relative"):
        monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", home)
        found = _cache.at(True)
        assert found is not None and found._folder == Path.home() / ".cache" / "prelude" / "tokenizers"


def test_small_files_are_not_kept(tmp_path: Path, file: Path) -> None:
    Tokenizer.from_file(file, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_only_the_native_rung_is_kept(folder: Path) -> None:
    unigram = (
        '{"version":"1.0","added_tokens":[],"model":{"type":"Unigram","vocab":[["a",0.0],["a",0.0]],"unk_id":0}}'
    )
    assert Tokenizer.from_str(unigram, cache=folder).backend == "reference"
    assert not folder.exists() or not tables(folder)


def test_the_oldest_go_where_there_are_too_many(
    folder: Path, json_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    for name in ("byte-level", "template", "sentence pieces"):
        Tokenizer.from_str(json_of(name), cache=folder)
        made += set(tables(folder)) - set(made)
        os.utime(made[-1], (len(made), len(made)))
    sizes = [path.stat().st_size for path in made]
    for most, kept in ((sum(sizes), made), (sum(sizes) - 1, made[1:]), (sum(sizes[1:]) - 1, made[2:])):
        monkeypatch.setattr(_cache, "_MOST_BYTES", most)
        made[-1].unlink()  # so that it is written again, and room is made for it
        Tokenizer.from_str(json_of("sentence pieces"), cache=folder)
        assert tables(folder) == sorted(kept)


def test_digests_see_every_byte_and_the_length(tmp_path: Path) -> None:
    key, chunk, seen = bytes(range(64)), 1 << 18, set()
    sizes = (0, 1, 7, 63, 64, 65, 127, 128, 1000, chunk - 1, chunk, chunk + 1, 2 * chunk)
    for size in sizes:
        for at in (None, *({0, size // 2, size - 1} if size else ())):
            data = bytes(size) if at is None else bytes(at) + b"\x01" + bytes(size - at - 1)
            (tmp_path / "data").write_bytes(data)
            with (tmp_path / "data").open("rb") as file:
                assert _core.digest_file(file.fileno(), key) == _core.digest(data, key) not in seen
            seen.add(_core.digest(data, key))
            assert _core.digest(data, bytes(64)) not in seen
    with pytest.raises(ValueError):
        _core.digest(b"", b"short")


def test_why_tables_are_not_used_is_said(file: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Tokenizer.from_file(file, cache=folder)
    (path,) = tables(folder)
    path.write_bytes(b"not tables" * 10)
    with caplog.at_level(logging.DEBUG, "prelude.tokenizer"):
        assert not is_used(file, folder)
    assert "another kind of file" in caplog.text
