"""An engine that renders its model's chat template in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, Decide, Embed, Engine, EngineConfig, Generate, SamplingParams, YesNo
from prelude.errors import ConfigError, EngineClosed, TemplateError
from tests.checkpoints import make_checkpoint
from tests.patience import PATIENCE, comes, until

HELLO = [{"role": "system", "content": "be kind."}, {"role": "user", "content": "Hello <|im_end|>!"}]
GREEDY = SamplingParams(max_tokens=4, temperature=0)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
PAIRS = "{% set ns = namespace(v=('x',)) %}{% for i in range(40) %}{% set ns.v = (ns.v, ns.v) %}{% endfor %}"
HOSTILE = {
    "endless": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "exponential": PAIRS + "{{ {ns.v: 1} }}",
    "memory": "{{ ('%(a)999999d' * 2000) % {'a': 1} }}",
    "compiling": "{{a}}" * 200_000,
    "attributes": "{{ messages.__class__.__mro__ }}",
}


def directory(path: Path, template: str = TEMPLATE) -> Path:
    make_checkpoint(path)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    return path


def config(**more: Any) -> EngineConfig:
    return EngineConfig(**{"kv_bytes": 1 << 22, "template_process": True, **more})


def process_of(engine: Engine) -> Any:
    process = engine._preparer._template_process
    assert process is not None
    process._max_seconds = PATIENCE  # a loaded machine changes nothing
    return process


def started(engine: Engine) -> int:
    process = process_of(engine)
    engine.explain(Generate(HELLO))
    return int(process._process.pid)


def is_gone(pid: int) -> bool:
    """Ended and waited for."""
    return not Path(f"/proc/{pid}").exists()


def test_a_template_process_gives_the_answers_of_an_engine_without_one(tmp_path: Path) -> None:
    tasks: list[Any] = [
        Generate(HELLO, GREEDY),
        Decide("The sea was calm.", [YesNo("Is it windy?")]),
        Decide(HELLO, [YesNo("Is it kind?")]),
        Embed(HELLO, pooling="last"),
    ]
    directory(tmp_path)
    with Engine.from_pretrained(tmp_path, config=config(template_process=False)) as plain:
        assert plain._preparer._template_process is None
        wanted = [(plain.explain(task).token_ids.tolist(), str(plain.run(task))) for task in tasks]
    with Engine.from_pretrained(tmp_path, config=config()) as engine:
        process_of(engine)
        found = [(engine.explain(task).token_ids.tolist(), str(engine.run(task))) for task in tasks]
    assert [ids for ids, _ in found] == [ids for ids, _ in wanted]
    for (_, one), (_, other) in zip(found, wanted):
        assert one.split("stats=")[0] == other.split("stats=")[0]


@pytest.mark.fault(37)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_fails_its_requests_alone(name: str, tmp_path: Path) -> None:
    with Engine.from_pretrained(directory(tmp_path, HOSTILE[name]), config=config()) as engine:
        process = process_of(engine)
        for task in (Generate(HELLO, GREEDY), Decide("hi", [YesNo("Polite?")])):
            with pytest.raises(TemplateError):
                engine.run(task)
        assert len(engine.complete("Once", GREEDY).token_ids) == 4
        assert engine.health().ok
        pid = process._process.pid
    assert is_gone(pid)


@pytest.mark.fault(37)
def test_a_process_that_does_not_answer_is_ended_and_replaced(tmp_path: Path) -> None:
    with Engine.from_pretrained(directory(tmp_path), config=config()) as engine:
        first = started(engine)
        process = process_of(engine)
        os.kill(first, signal.SIGSTOP)
        process._max_seconds = 0.5
        with pytest.raises(TemplateError, match=r"no answer in 0\.5 seconds"):
            engine.complete(HELLO, GREEDY)
        assert is_gone(first)
        second = started(engine)
        assert len(engine.complete(HELLO, GREEDY).token_ids) == 4
    assert is_gone(second)


def test_the_loop_goes_on_while_it_renders(tmp_path: Path) -> None:
    """Short messages, which would be rendered in the loop's own thread."""

    async def main() -> None:
        async with AsyncEngine.from_pretrained(directory(tmp_path), config=config()) as engine:
            pid = started(engine.engine)
            for ask in (lambda: engine.complete(HELLO, GREEDY), lambda: engine.decide("hi", [YesNo("Polite?")])):
                os.kill(pid, signal.SIGSTOP)
                waits = asyncio.create_task(ask())
                await comes(process_of(engine.engine)._lock.locked)
                assert len((await engine.complete("Once", GREEDY)).token_ids) == 4
                assert not waits.done()
                os.kill(pid, signal.SIGCONT)
                await waits

            stream = engine.generate(HELLO, GREEDY)
            assert [chunk async for chunk in stream][-1].finish_reason == "length"
        assert is_gone(pid)

    asyncio.run(main())


@pytest.mark.feature("N8")
@pytest.mark.fault(60)
@pytest.mark.parametrize("drain", [True, False])
def test_closing_ends_it_with_the_rendering_under_way(drain: bool, tmp_path: Path) -> None:
    engine = Engine.from_pretrained(directory(tmp_path), config=config())
    pid = started(engine)
    os.kill(pid, signal.SIGSTOP)
    raised: list[Exception] = []

    def ask() -> None:
        try:
            engine.complete(HELLO, GREEDY)
        except EngineClosed as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(process_of(engine)._lock.locked)
    engine.close(drain=drain)
    thread.join(PATIENCE)
    assert is_gone(pid) and len(raised) == 1
    with pytest.raises(EngineClosed):
        engine.explain(Generate(HELLO))
    assert engine._core.snapshot()["queued_requests"] == 0


@pytest.mark.fault(60)
def test_a_dropped_engine_leaves_none(tmp_path: Path) -> None:
    engine = Engine.from_pretrained(directory(tmp_path), config=config())
    pid = started(engine)
    engine.complete(HELLO, GREEDY)
    del engine
    until(lambda: gc.collect() >= 0 and is_gone(pid))


def test_a_model_without_a_chat_template_has_none(make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    engine = make_engine(template_process=True)
    assert engine._preparer._template_process is None
    assert len(engine.complete("Once", GREEDY).token_ids) == 4
    with pytest.raises(ConfigError, match="template_process must be True or False"):
        EngineConfig(template_process="yes")  # type: ignore[arg-type]
