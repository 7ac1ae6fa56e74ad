"""Merging works on ids in buffers that a thread keeps: the heap memory of an encoding does not grow with the text."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prelude import default_model

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static __thread long asked;
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
void* malloc(size_t n) { ++asked; return __libc_malloc(n); }
void* calloc(size_t n, size_t size) { ++asked; return __libc_calloc(n, size); }
void* realloc(void* p, size_t n) { ++asked; return __libc_realloc(p, n); }
long times_asked(void) { return asked; }
"""

SCRIPT = """
import ctypes, random, sys
from prelude.tokenizer import Tokenizer

counter = ctypes.CDLL(None).times_asked
counter.restype = ctypes.c_long
tokenizer = Tokenizer.from_file(sys.argv[1])
rng = random.Random(3)
words = lambda n: " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=11)) for _ in range(n))
tokenizer.encode_array(words(3000))  # the buffers of this thread, as large as they will be
for n in (10, 100, 1000):
    text = words(n)
    before = counter()
    made = tokenizer.encode_array(text)
    print(n, len(made), counter() - before)
"""


@pytest.mark.feature("J5")
@pytest.mark.skipif(sys.platform != "linux", reason="counts glibc's allocations")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_merging_does_not_allocate(tmp_path: Path) -> None:
    source, library = tmp_path / "counter.c", tmp_path / "counter.so"
    source.write_text(COUNTER, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    shown = subprocess.run(
        [sys.executable, "-c", SCRIPT, default_model.path() / "tokenizer.json"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [[int(x) for x in line.split()] for line in shown.splitlines()]
    assert [row[0] for row in rows] == [10, 100, 1000]
    for words, tokens, asked in rows:
        assert tokens > 2 * words  # no word was found whole: all were merged
        assert 1 <= asked <= 8, rows  # the array and its like, for ten words as for a thousand
