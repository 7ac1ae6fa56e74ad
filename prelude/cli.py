"""``prelude demo``: the main job on real input, in a terminal. ``prelude simulate``: see docs/SIMULATOR.md;
``prelude calibrate``: docs/CALIBRATION.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from prelude import __version__
from prelude.calibration import command as calibrate
from prelude.errors import PreludeError
from prelude.simulation import command
from prelude.tables import text_table

if TYPE_CHECKING:
    from prelude.engine import AsyncEngine
    from prelude.results import Answers


_PROMPT = "The library is open"
_KNOWS = (
    "\nThe packaged model knows these two questions, in this wording. It answers any other question too, with\n"
    'confidence and wrongly: "Is the text free of personal data?" as if it were the question above. --model takes\n'
    "your own."
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="prelude", description="Decisions and chat on one set of weights, in-process."
    )
    parser.add_argument("--version", action="version", version=f"prelude {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="decide, embed and complete on real input, and say what it took")
    demo.add_argument("--model", default=None, help="a model directory or a hub name; the packaged model by default")
    demo.add_argument("--revision", default=None, help="commit, tag or branch of a hub name")
    demo.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    demo.add_argument("--deterministic", action="store_true", help="bits that do not depend on the batch")
    simulation = commands.add_parser("simulate", help="plan a workload in virtual time, on any machine")
    command.add_arguments(simulation)
    calibration = commands.add_parser("calibrate", help="fit probabilities to labels, and measure them")
    calibrate.add_arguments(calibration)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "calibrate":
            return calibrate.main(chosen)
        return command.main(chosen) if chosen.command == "simulate" else asyncio.run(_demo(chosen))
    except PreludeError as error:
        print(f"prelude: {error}", file=sys.stderr)
        return 2


async def _demo(chosen: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        print("prelude: the demo needs the engine extra: pip install 'prelude-engine[engine]'", file=sys.stderr)
        return 2
    from prelude import AsyncEngine, EngineConfig, SamplingParams
    from prelude.default_model import path as default_path

    script = json.loads((default_path() / "demo.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    config = EngineConfig(deterministic=chosen.deterministic)
    load = AsyncEngine.from_pretrained(chosen.model, revision=chosen.revision, dtype=chosen.dtype, config=config)
    async with load as engine:
        loaded = time.perf_counter()
        decisions = await _decisions(engine, script)
        decided = time.perf_counter()
        vectors = [await engine.embed(text, pooling="last") for text in script["texts"][:4]]
        completion = await engine.complete(_PROMPT, SamplingParams(max_tokens=32, temperature=0))
        _show_decisions(script, decisions)
        if chosen.model is None:
            print(_KNOWS)
        _show_rest(script, vectors, completion)
        _show_account(engine, str(chosen.model or Path(default_path()).name), loaded - began, decided - loaded)
    return 0


def _questions(script: dict[str, Any]) -> list[Any]:
    from prelude import Choice, YesNo

    questions: list[Any] = []
    for question in script["questions"]:
        yes_no = [label.lower() for label in question["labels"]] == ["yes", "no"]
        questions.append(YesNo(question["question"]) if yes_no else Choice(question["question"], question["labels"]))
    return questions


async def _decisions(engine: AsyncEngine, script: dict[str, Any]) -> list[Answers]:
    """Every text under the shared rubric, all at once: the rubric is computed once."""
    from prelude import Decide

    questions = _questions(script)
    states = [script["state"].format(rubric=script["rubric"], text=text) for text in script["texts"]]
    return await engine.run_many([Decide(state, questions) for state in states])


def _show_decisions(script: dict[str, Any], decisions: list[Answers]) -> None:
    asked = " / ".join(question["question"] for question in script["questions"])
    header = ["text"]
    for question in script["questions"]:
        header += [question["key"].replace("_", " "), "p"]
    rows = []
    for text, answers in zip(script["texts"], decisions):
        row = [text]
        for answer in answers:
            row += [answer.label, f"{answer.probabilities[answer.label]:.3f}"]
        rows.append(row)
    title = f"{asked}  (one rubric, {len(decisions)} texts)"
    width = get_terminal_size().columns
    print(text_table(rows, header=header, right=range(2, len(header), 2), title=title, elastic=0, width=width))


def _show_rest(script: dict[str, Any], vectors: list[Any], completion: Any) -> None:
    near = " ".join(f"{float(vectors[0] @ other):+.2f}" for other in vectors[1:])
    print(f"\nEmbeddings  {len(vectors[0])} dimensions; cosine of text 1 with texts 2 to 4: {near}")
    print(f"Completion  {_PROMPT!r} -> {completion.text!r} ({completion.finish_reason})\n")


def _show_account(engine: AsyncEngine, model: str, load_s: float, decide_s: float) -> None:
    stats = engine.stats()
    computed = stats["prefill_tokens"] + stats["decode_tokens"]
    folded, cached = stats["folded_tokens"], stats["prefix_hit_tokens"]
    rows = {
        "model": model,
        "requests": ", ".join(f"{count} {name}" for name, count in stats["requests"].items()),
        "steps": ", ".join(f"{count} {name}" for name, count in stats["steps"].items()),
        "tokens computed": f"{computed}",
        "tokens reused": f"{folded + cached} ({folded} shared within a step, {cached} from the prefix cache)",
        "milliseconds": f"{load_s * 1e3:.0f} loading, {decide_s * 1e3:.0f} for the decisions, "
        f"{stats['forward_seconds'] * 1e3:.0f} in the model altogether",
    }
    print(text_table(list(rows.items()), title="What happened"))


if __name__ == "__main__":
    sys.exit(main())
