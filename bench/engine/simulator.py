"""The step costs of the simulator's ``cpu-default`` machine, fitted to measured steps of the packaged model: ``--fit
FILE``.

python -m bench simulator --fit prelude/simulation/cpu-default.json
"""

from __future__ import annotations

import random

import numpy as np

from bench.command_line import options_parser
from bench.common import machine_facts
from prelude import Choice, Decide, Embed, Engine, EngineConfig, ExpertConfig, PromptLogprobs
from prelude.scheduling.cost import CostModel, Work
from prelude.terminal.progress import watched

_WORDS = ["the", "harbour", "was", "quiet", "that", "morning", "two", "boats", "lay", "at", "quay", "storm", "and"]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def fit(path: str, rounds: int) -> None:
    """Steps of every size, alone and together, with cached prefixes and without; then new ones to hold it against."""
    rng = random.Random(0)
    config = EngineConfig(expert=ExpertConfig(max_step_requests=64))
    with Engine.from_pretrained(config=config) as engine:
        core = engine._core
        observed: list[tuple[float, float]] = []
        model = CostModel(memory=1 << 20)
        held_out = False
        postprocess = core.stepper._postprocess

        def observed_too(step, result, bad_rows):  # type: ignore[no-untyped-def]
            work = Work(step.packed.batch.num_tokens, result.attended_tokens, result.lm_head_rows)
            if held_out:
                observed.append((model.predict(work), result.seconds))
            else:
                model.observe(work, result.seconds)
            postprocess(step, result, bad_rows)

        core.stepper._postprocess = observed_too  # type: ignore[method-assign]
        for number in watched(range(rounds), "measuring", "rounds", rounds):
            held_out = number >= rounds * 2 // 3
            rubric = text(rng, rng.choice([20, 150, 500]))
            count = rng.choice([1, 2, 4, 8, 16, 32])
            question = Choice("Which one?", ["a", "b", "c"])
            engine.run_many([Decide(f"{rubric} {text(rng, rng.randint(5, 100))}", [question]) for _ in range(count)])
            engine.run_many(
                [Embed(text(rng, rng.randint(5, 500)), pooling="last") for _ in range(rng.choice([1, 4]))]
            )
            engine.run(PromptLogprobs(text(rng, rng.randint(5, 500))))
    model.save(path)
    predicted, measured = np.array(observed).T
    r = float(np.corrcoef(predicted, measured)[0, 1])
    error = float(np.median(np.abs(predicted - measured) / measured))
    print(f"{path}: {model.coefficients}")
    print(f"{len(observed)} other steps: r {r:.3f}, median error {error:.1%}; {machine_facts()}")


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--fit", metavar="FILE", required=True)
    parser.add_argument("--rounds", type=int, default=120)
    chosen = parser.parse_args()
    fit(chosen.fit, chosen.rounds)
