"""Random mixes of requests under ``max_memory``: the process does not grow past it.

    python -m tests.memory_mixes --mixes 1000 [--seed N] [--megabytes 120] [--model DIR]

A mix has up to four requests at once: decisions, means of whole texts, continuations, completions and at most one
with the logprobs of its whole prompt and all alternatives; one in three is as long as the engine takes. Printed as
JSON: the budget, and by how much the process grew at most (``grown``) from before the engine was loaded to its end.
The status is 1 where that is more.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import Any

import prelude
from prelude import Engine, EngineConfig, ExpertConfig, SamplingParams
from prelude.cpu.profile import peak_bytes

MB = 1 << 20


def mix(rng: random.Random, longest: int, vocab: int) -> list[Any]:
    """Tasks that are asked for together."""

    def ids(most: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(rng.randint(max(1, most // 2), most))]

    made: list[Any] = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(5 if not any(isinstance(task, prelude.PromptLogprobs) for task in made) else 4)
        most = longest if rng.random() < 0.3 else min(300, longest)
        if kind == 0:
            labels = ["billing", "delivery", "other"][: rng.randint(2, 3)]
            made.append(prelude.Decide("The parcel came late. " * rng.randint(1, 8), [prelude.Choice("?", labels)]))
        elif kind == 1:
            made.append(prelude.Generate(ids(most - 20), SamplingParams(max_tokens=8, ignore_eos=True)))
        elif kind == 2:
            made.append(prelude.Embed(ids(most), pooling="mean"))
        elif kind == 3:
            made.append(prelude.Loglikelihood(ids(most - 20), ids(20)))
        else:
            made.append(prelude.PromptLogprobs(ids(most), top=256))
    return made


def run(megabytes: int, mixes: int, seed: int, model: str | None) -> dict[str, Any]:
    rng = random.Random(seed)
    Engine.from_pretrained(model, config=EngineConfig(kv_bytes=MB)).close()  # modules and kernels are there
    config = EngineConfig(max_memory=megabytes * MB, max_running=8, expert=ExpertConfig(question_plan_bytes=0))
    found: dict[str, Any] = {"budget": megabytes * MB}

    def whole_life() -> None:
        with Engine.from_pretrained(model, config=config) as engine:
            vocab = engine.model_info.vocab_size
            for _ in range(mixes):
                results = engine.run_many(mix(rng, engine.max_length, vocab), return_exceptions=True)
                for failure in (one for one in results if isinstance(one, BaseException)):
                    raise failure
                del results  # kept, they would be those of two mixes
            found.update(max_length=engine.max_length, kv_tokens=engine.model_info.kv_tokens, mixes=mixes)

    grown = peak_bytes(whole_life)
    return {**found, "grown": grown}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--megabytes", type=int, default=120)
    parser.add_argument("--model", default=None)
    given = parser.parse_args()
    found = run(given.megabytes, given.mixes, given.seed, given.model)
    print(json.dumps(found))
    return 0 if found["grown"] is None or found["grown"] <= found["budget"] else 1


if __name__ == "__main__":
    sys.exit(main())
