"""The memory of a loaded tokenizer: 40 MB for the tables of a large file, and at most 32 MB more for any texts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import shown
from tests.tokenizer.shared import REPO

SCRIPT = """
import ctypes, gc, random, sys
from bench.tokenizer.hostile import hostile_texts
from prelude.tokenizer import Tokenizer

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) / 1024

small, large = sys.argv[1:]
first = Tokenizer.from_file(small, cache=False)
first.encode("once, for the tables that all tokenizers share: é").offsets
rng = random.Random(1)
words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randrange(3, 14))) for _ in range(300_000)]
hostile = [text.encode() for text in hostile_texts(600_000).values()]  # a str would keep its UTF-8
begin = resident()
tokenizer = Tokenizer.from_file(large, cache=False)
loaded = resident()
for at in range(0, len(words), 1000):
    tokenizer.encode(" ".join(words[at : at + 1000])).offsets
for at in range(0, len(words), 1000):  # chats: their stretches are kept apart from words
    tokenizer.encode_array("<|im_end|><|eot_id|>".join(" ".join(words[i : i + 4]) for i in range(at, at + 1000, 4)))
    texts = "<|im_end|><|eot_id|>".join(" ".join(words[i : i + 400]) for i in range(at, at + 1000, 400))
    for _ in range(2):  # a text that is met again is kept whole
        tokenizer.encode_array(texts)
for text in hostile:
    tokenizer.encode_array(text)
print(loaded - begin, resident() - loaded, tokenizer._core.table_bytes, tokenizer._core.cache_bytes)
"""


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FAULTS = """
import mmap, resource, sys
from prelude.tokenizer import Tokenizer

def large_pages():
    "Whether this system has pages of 2 MB left."
    memory = mmap.mmap(-1, 16 << 20)
    memory.madvise(mmap.MADV_HUGEPAGE)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for at in range(0, 16 << 20, 4096):
        memory[at] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 1024

tokenizer = Tokenizer.from_file(sys.argv[1])
for unit in "\u1100", "a\u0301", "\U0001f600":
    text, least = unit * 400_000, 1 << 30
    if not large_pages():
        print("none")
        break
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        tokenizer.encode_array(text)
        least = min(least, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    print(least if large_pages() else "none")
"""


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(encoding="utf-8"),
    reason="no transparent huge pages here",
)
def test_a_long_text_touches_few_pages(shared: Path) -> None:
    """The memory of a call is given back after it, and taken again in pages of 2 MB."""
    file = shared / "tokenizers" / "gpt-neox" / "tokenizer.json"
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, str(file)], cwd=REPO, check=True, capture_output=True, text=True
    )
    if "none" in done.stdout:
        pytest.skip("the system has no pages of 2 MB left")
    assert [int(line) < 500 for line in done.stdout.split()] == [True] * 3, done.stdout  # thousands of 4 KB


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("family", ["qwen3", "llama-3.2"])
def test_memory_is_bounded(shared: Path, family: str) -> None:
    files = [str(shared / "tokenizers" / name / "tokenizer.json") for name in ("gpt2", family)]
    seen = []

    def bounded() -> bool:
        """Whole pages of 2 MB, where a system gives them unasked, and the allocator's rest are in one run and not in
        another."""
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *files], cwd=REPO, check=True, capture_output=True, text=True
        )
        seen.append(done.stdout)
        tables, more, said, cache = map(float, done.stdout.split())
        assert cache <= 32e6
        # The core's own figure for its tables is their memory, but for the int objects of ids and the pages' ends.
        return tables <= 40 and more <= 32 and said / 1e6 * 0.8 <= tables <= said / 1e6 * 1.2 + 12

    assert shown(bounded, 3), seen


NO_ROOM = """
import json, resource, sys
from prelude.tokenizer import Tokenizer

model = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(1000)}, "unk_token": "w0"}
small = json.dumps({"model": model, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []})
with open("/proc/self/status") as status:
    size = next(int(line.split()[1]) for line in status if line.startswith("VmSize:")) * 1024
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (size + (30 << 20), limits[1]))
first = Tokenizer.from_str(small)
resource.setrlimit(resource.RLIMIT_AS, limits)
second = Tokenizer.from_file(sys.argv[1], cache=False)
text = "hello there, w999"
print(first.encode("w5 w999 w300").ids, second.encode(text).ids == second.encode_array(text).tolist())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ids_whose_ints_once_found_no_room(shared: Path) -> None:
    """The ints of ids lie side by side, but for those made while there was no memory for that."""
    file = shared / "tokenizers" / "gpt2" / "tokenizer.json"
    done = subprocess.run([sys.executable, "-c", NO_ROOM, str(file)], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[5, 999, 300] True\n"), done.stderr
