"""fasttoken among its peers: one run, equality with HF first, CPU time, fixed inputs beside text never seen before.

    python -m bench.tokenizer_peers --tokenizer tokenizer.json [--text FILE ...] [--json FILE] [--plot FILE]
                                    [--quick] [--plant-fault PEER]

Peers are taken where they are installed: fastokens, gigatoken, iree (``pip install fastokens==0.3.5 gigatoken==0.10.0
iree-tokenizer==0.3.0``), and HF's next release from a folder of its own, which ``HF1_PATH`` names (``pip install
--no-deps --target DIR tokenizers==1.0.0rc3``). A peer whose ids differ from HF 0.23.3 on an input gets no figure for
it, and ours differing stops the run. ``--plant-fault`` drops an id of that peer's, to show that.

The fixed inputs repeat their words, which flatters a cache of words: the streamed table beside it takes the texts of
``--text`` in calls of 8,192 characters, each seen once. Each figure is the least CPU time of a call, peers in turn.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from prelude.tokenizer import Tokenizer

from bench.common import Report, machine_facts
from bench.tokenizer import inputs

Encode = Callable[[str], Any]


def hf(path: Path) -> dict[str, Encode]:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    return {"list": lambda s: tokenizer.encode(s, add_special_tokens=False).ids}


def ours(path: Path) -> dict[str, Encode]:
    tokenizer = Tokenizer.from_file(path)
    return {
        "list": lambda s: tokenizer.encode(s, add_special_tokens=False).ids,
        "array": lambda s: tokenizer.encode_array(s, add_special_tokens=False),
    }


def hf_next(path: Path) -> dict[str, Encode]:
    """HF 1.0: another module of the same name, so it is imported from its folder and then put aside."""
    folder = os.environ["HF1_PATH"]
    kept = {k: sys.modules.pop(k) for k in list(sys.modules) if k.split(".")[0] == "tokenizers"}
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module("tokenizers")
    finally:
        sys.path.remove(folder)
        for name in [k for k in sys.modules if k.split(".")[0] == "tokenizers"]:
            del sys.modules[name]
        sys.modules.update(kept)
    tokenizer = module.Tokenizer.from_file(str(path))
    return {
        "list": lambda s: tokenizer.encode(s, add_special_tokens=False).ids,
        "array": lambda s: tokenizer.encode(s, add_special_tokens=False).ids_array,
    }


def fastokens(path: Path) -> dict[str, Encode]:
    tokenizer = importlib.import_module("fastokens._native").Tokenizer.from_file(str(path))
    return {"list": lambda s: tokenizer.encode(s).ids}


def gigatoken(path: Path) -> dict[str, Encode]:
    backend = importlib.import_module("gigatoken").Tokenizer(str(path)).backend
    return {"list": lambda s: backend.encode(s).tolist(), "array": backend.encode}


def iree(path: Path) -> dict[str, Encode]:
    tokenizer = importlib.import_module("iree.tokenizer").Tokenizer.from_file(str(path))
    return {"list": tokenizer.encode, "array": tokenizer.encode_to_array}


PEERS = {"prelude": ours, "HF 1.0": hf_next, "fastokens": fastokens, "gigatoken": gigatoken, "iree": iree}


def installed(path: Path) -> dict[str, dict[str, Encode]]:
    """The calls of each peer that is here and takes the file; a line for each that is not."""
    found: dict[str, dict[str, Encode]] = {}
    for name, load in PEERS.items():
        try:
            found[name] = load(path)
        except Exception as error:
            if name == "prelude":
                raise
            print(f"without {name}: {type(error).__name__} {error}"[:160], file=sys.stderr)
    return found


def faulty(calls: dict[str, Encode]) -> dict[str, Encode]:
    return {kind: lambda s, call=call: list(call(s))[:-1] for kind, call in calls.items()}  # type: ignore[misc]


def equal(expected: Sequence[int], given: Any) -> bool:
    return len(expected) == len(given) and all(int(a) == int(b) for a, b in zip(expected, given))


def least(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """CPU seconds of each call: the least of several, taken in turn."""
    best = dict.fromkeys(calls, float("inf"))
    loops = {}
    for name, call in calls.items():
        began = time.process_time()
        call()
        loops[name] = max(1, int(1e-3 / max(time.process_time() - began, 1e-7)))
    end = time.process_time() + seconds * len(calls)
    rounds = 0
    while rounds < 5 or (time.process_time() < end and rounds < 60):
        rounds += 1
        for name, call in calls.items():
            began = time.process_time()
            for _ in range(loops[name]):
                call()
            best[name] = min(best[name], (time.process_time() - began) / loops[name])
    return best


def fixed(
    report: Report, base: Encode, peers: dict[str, dict[str, Encode]], texts: dict[str, str], seconds: float
) -> int:
    """Rows of the fixed inputs as ratios to HF, and their geometric means; how many inputs ours differs on."""
    ratios: dict[tuple[str, str], list[float]] = {}
    wrong = 0
    for name, text in texts.items():
        expected = base(text)
        calls: dict[str, Callable[[], Any]] = {"HF": lambda text=text: base(text)}  # type: ignore[misc]
        for peer, kinds in peers.items():
            for kind, encode in kinds.items():
                if equal(expected, encode(text)):
                    calls[f"{peer} {kind}"] = lambda encode=encode, text=text: encode(text)  # type: ignore[misc]
                else:
                    print(f"{name}: {peer} to {kind} differs from HF", file=sys.stderr)
                    wrong += peer == "prelude"
        if wrong:
            return wrong
        times = least(calls, seconds)
        for key, taken in times.items():
            if key == "HF":
                continue
            peer, kind = key.rsplit(" ", 1)
            ratio = times["HF"] / taken
            ratios.setdefault((peer, kind), []).append(ratio)
            report.add(
                f"{name} ({len(text)} ch)",
                f"{peer}, {kind}",
                (ratio, ratio, ratio),
                "x",
                note=f"{taken * 1e6:.2f} us",
            )
    for (peer, kind), values in ratios.items():
        if len(values) == len(texts):
            mean = statistics.geometric_mean(values)
            report.add("geometric mean", f"{peer}, {kind}", (mean, min(values), max(values)), "x")
    return wrong


def streamed(report: Report, base: Encode, peers: dict[str, dict[str, Encode]], path: Path) -> int:
    """Each piece of the text once, to lists: what a cache of words has not seen. How many pieces ours differs on."""
    text = path.read_text(encoding="utf-8", errors="replace")
    pieces = [text[at : at + 8192] for at in range(0, len(text), 8192)]
    expected = [base(piece) for piece in pieces]
    size = len(text.encode())
    wrong = 0
    for peer, kinds in peers.items():
        encode, spent, bad = kinds["list"], 0.0, 0
        encode("A first call pays for what is made late.")
        for piece, ids in zip(pieces, expected):
            fresh = piece[:1] + piece[1:]  # a str that has not kept its UTF-8 yet
            began = time.process_time()
            given = encode(fresh)
            spent += time.process_time() - began
            bad += not equal(ids, given)
        if bad:
            print(f"{path.name}: {peer} differs from HF on {bad} of {len(pieces)} pieces", file=sys.stderr)
            wrong += bad if peer == "prelude" else 0
            continue
        rate = size / 1e6 / max(spent, 1e-9)
        report.add(f"never seen: {path.name}", f"{peer}, list", (rate, rate, rate), "MB/s")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--text", type=Path, action="append", default=[], help="text no peer has seen")
    parser.add_argument("--quick", action="store_true", help="short inputs, few rounds")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--plot", type=Path, help="draw the ratios here")
    parser.add_argument("--plant-fault", choices=PEERS, help="drop an id of this peer's")
    options = parser.parse_args()
    base, peers = hf(options.tokenizer)["list"], installed(options.tokenizer)
    if options.plant_fault in peers:
        peers[options.plant_fault] = faulty(peers[options.plant_fault])
    facts = machine_facts([("tokenizers", tokenizers.__version__), ("peers", ", ".join(peers))])
    report = Report(
        "fasttoken among its peers, against HF tokenizers", "python -m bench.tokenizer_peers", facts=facts
    )
    # What was never seen comes first: the fixed inputs would warm the caches.
    wrong = sum(streamed(report, base, peers, path) for path in options.text)
    wrong += fixed(report, base, peers, inputs(options.quick), 0.02 if options.quick else 0.2)
    if wrong:
        print(f"ours is not equal to HF on {wrong} texts, so there are no figures", file=sys.stderr)
        return 1
    report.show()
    if options.json:
        report.write(options.json)
    if options.plot:
        report.plot(options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
