"""Tokenizer files changed with structure, loaded and used.

    python -m tests.fuzz_tokenizer_files --minutes 3 [--seed N]
    python -m tests.fuzz_tokenizer_files --chunks 5 --seed 26    # the same files in every run: 5 chunks of 200

Each file is made of parts of every kind, or is one of the reference files where they are, and is then changed
where numbers become indices or sizes: ids of the vocabulary, of added tokens and of templates, holes, sizes,
flags, patterns, charsmaps, nesting. It is loaded, and encodes and decodes a few texts. The tables that are kept of
one in five are changed as well, and one in five is a rank file (``tests.fuzz_kept_and_ranks``). Found is:

- the end of the process by a signal, or an allocation past ``MEMORY``;
- an exception that is neither a ``PreludeError`` nor one of ``DOCUMENTED``;
- more than ``SECONDS`` of processor time for one file; after four times as many the process is ended;
- ids, or a decoded text, that are not those of HF ``tokenizers``, where HF takes the file and the text.

Chunks of files run in a process of their own, which writes each file before it is loaded: the file that ends the
process is there. ``docs/TOKENIZER.md`` has the command for AddressSanitizer.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz_kept_and_ranks import rank_file, wrong_with_kept, wrong_with_ranks
from tests.random_tokenizer_files import TEXTS, files, real_files

CHUNK = 200  # files a process
SECONDS = 20.0  # of processor time, for one file with all its texts; a foreign pattern may take 2 for each call
MEMORY = 3 << 30  # bytes of address space that a process may add; not under AddressSanitizer
DOCUMENTED = (UnicodeError, OverflowError, MemoryError)


# ------------------------------------------------------------------ one file
def same_as_hf(data: bytes, ours: Any, texts: list[str]) -> str | None:
    """Where ids or decoded texts differ from HF's; None where they do not, or HF takes no file or text."""
    import tokenizers

    try:
        theirs = tokenizers.Tokenizer.from_str(data.decode())
    except BaseException as error:
        return None if type(error) is Exception or panics(error) else f"{error!r}"
    for text in texts:
        try:
            mine = ours.encode(text)  # first: a text that is too large for ours may be too large for the machine
            wanted = theirs.encode(text)
            decoded = theirs.decode(wanted.ids)
            if mine.ids != wanted.ids and not by_chance(data, text, mine.ids):
                return f"ids of {text!r}: {mine.ids[:20]}, HF's are {wanted.ids[:20]}"
            if mine.ids == wanted.ids and ours.decode(mine.ids) != decoded:
                return f"decoded {text!r}: {ours.decode(mine.ids)[:60]!r}, HF's is {decoded[:60]!r}"
        except BaseException as error:
            if not accepted(error) and not panics(error) and type(error) is not Exception:
                raise
    return None


def by_chance(data: bytes, text: str, ids: list[int]) -> bool:
    """Whether HF gives these ids at other loads: of added tokens that normalize alike it takes any."""
    import tokenizers

    return any(tokenizers.Tokenizer.from_str(data.decode()).encode(text).ids == ids for _ in range(30))


def has_one_text_an_id(data: bytes) -> bool:
    """False where two tokens have one id: which of them HF decodes it to differs from load to load."""
    try:
        vocab = json.loads(data)["model"]["vocab"]
        return not isinstance(vocab, dict) or len(set(vocab.values())) == len(vocab)
    except (ValueError, KeyError, TypeError):
        return True


def panics(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def accepted(error: BaseException) -> bool:
    from prelude.errors import PreludeError

    return isinstance(error, (PreludeError, *DOCUMENTED))


def used(tokenizer: Any, text: str) -> None:
    from prelude.tokenizer import DecodeStream

    calls: list[Callable[[], Any]] = [
        lambda: tokenizer.encode(text).ids,
        lambda: tokenizer.encode(text, "ab").offsets,
        lambda: tokenizer.encode(text).tokens,
        lambda: tokenizer.encode(["a", text], is_pretokenized=True).word_ids,
        lambda: [e.ids for e in tokenizer.encode_batch([text, "a b"])],
        lambda: tokenizer.encode_array(text, False, parse_special=False),
        lambda: tokenizer.encode_with_offsets(text, False),
        lambda: tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False),
        lambda: tokenizer.decode([0, 1, 2, 300, 60_000, (1 << 31) - 1, (1 << 32) - 1]),
        lambda: [DecodeStream().step(tokenizer, i) for i in (0, 1, 2, 60_000)],
        lambda: tokenizer.token_bytes(1),
    ]
    for call in calls:
        try:
            call()
        except BaseException as error:
            if not accepted(error) and type(error) is not ValueError:
                raise


def one_file(data: bytes, texts: list[str], compare: bool) -> str | None:
    """The error in serving this file; None: there is none."""
    from prelude.tokenizer import Tokenizer

    def served() -> str | None:
        tokenizer = Tokenizer.from_buffer(data, cache=False)
        tokenizer.get_vocab(), tokenizer.id_limit, tokenizer.num_special_tokens_to_add(True)
        for text in texts:
            used(tokenizer, text)
        tokenizer.to_str()
        return same_as_hf(data, tokenizer, texts) if compare and has_one_text_an_id(data) else None

    return within_time(served)


def within_time(served: Callable[..., str | None], *arguments: Any) -> str | None:
    """The result of ``served(*arguments)``, an error that is not ``accepted``, or that it took more than
    ``SECONDS``."""
    began = time.process_time()
    try:
        wrong = served(*arguments)
        if wrong:
            return wrong
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not accepted(error):
            import traceback

            return "".join(traceback.format_exception(error))[-1500:]
    spent = time.process_time() - began
    return f"{spent:.1f} seconds" if spent > SECONDS else None


def child(seed: int, folder: Path, compare: bool) -> None:
    """Runs one chunk; a finding is a line of JSON, the file being tried lies in ``folder``."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        import prelude.tokenizer  # noqa: F401
        import tokenizers  # noqa: F401

        taken = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    faulthandler.register(signal.SIGPROF, chain=True)  # a file that does not end is shown, and ends the process
    rng = random.Random(seed)
    tried = folder / "tried.json"
    count = 0
    for data in files(seed, real_files(), CHUNK):
        texts = rng.sample(TEXTS, 3)
        signal.setitimer(signal.ITIMER_PROF, 4 * SECONDS)
        if count % 5 == 4:
            data, pattern, special = rank_file(rng)
            tried.write_bytes(data + f"\n\n{pattern!r} {special}".encode("utf-8", "backslashreplace"))
            wrong = within_time(wrong_with_ranks, data, pattern, special, texts)
        else:
            tried.write_bytes(data)
            wrong = one_file(data, texts, compare)
            if not wrong and count % 5 == 0 and has_one_text_an_id(data):
                wrong = within_time(wrong_with_kept, rng, data, texts)
        count += 1
        if wrong:
            kept = folder / f"found-{seed}-{count}.json"
            shutil.copy(tried, kept)
            print(json.dumps({"file": str(kept), "wrong": wrong}), flush=True)
    print(json.dumps({"count": count}), flush=True)


# ------------------------------------------------------------------ many
def run_chunk(seed: int, folder: Path, compare: bool) -> tuple[int, list[dict[str, str]]]:
    """(files tried, findings) by a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz_tokenizer_files", "--child", str(seed), "--folder", str(folder)]
    command += [] if compare else ["--no-compare"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60 * CHUNK,
            errors="replace",
            # HF makes a thread for each processor, and each thread reserves 64 MB of the bounded address space.
            env={**os.environ, "RAYON_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "4"},
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = -1, "", "the process did not end"
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    found = [line for line in lines if "wrong" in line]
    if code != 0:
        kept = folder / f"ended-{seed}.json"
        if (folder / "tried.json").exists():
            shutil.copy(folder / "tried.json", kept)
        found.append({"file": str(kept), "wrong": f"the process ended with {code}: {err[-3000:]}"})
    return sum(line.get("count", 0) for line in lines), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--chunks", type=int, default=None, help="so many, in place of --minutes")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=Path, default=None, help="where files that were found are kept")
    parser.add_argument("--no-compare", action="store_true", help="not with HF")
    parser.add_argument("--child", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tokenizer-files-"))
    if args.child is not None:
        return child(args.child, folder, not args.no_compare)
    began, tried, wrong, seed = time.monotonic(), 0, 0, args.seed
    while time.monotonic() - began < args.minutes * 60 if args.chunks is None else seed < args.seed + args.chunks:
        count, found = run_chunk(seed, folder, not args.no_compare)
        tried, wrong, seed = tried + count, wrong + len(found), seed + 1
        for one in found:
            print(f"seed {seed - 1}: {one['file']}\n{one['wrong']}", flush=True)
    print(f"{tried} files in {(time.monotonic() - began) / 60:.1f} minutes from seed {args.seed}, {wrong} found")
    sys.exit(bool(wrong) or tried < CHUNK * (seed - args.seed))


if __name__ == "__main__":
    main()
