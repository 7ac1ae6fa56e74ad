"""One engine after another in a process, and calls that run while one is closed or the interpreter leaves."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prelude import Choice, DecisionTemplate, Engine, EngineConfig, SamplingParams, YesNo
from prelude.cpu.profile import resident_bytes
from prelude.errors import EngineClosed
from tests.patience import shown

PARAMS = SamplingParams(max_tokens=4, temperature=0)


@pytest.mark.fault(67)
@pytest.mark.skipif(resident_bytes() is None, reason="the system does not count a process's memory")
def test_an_engine_is_swapped_for_another_while_requests_run(checkpoint: Path) -> None:
    """Those that run are drained, later ones refused, and memory comes back."""
    config = EngineConfig(kv_bytes=32 << 20)
    want, sizes = [], []

    def swap() -> int:
        engine = Engine.from_pretrained(checkpoint, config=config)
        want.append(engine.complete("The quick brown", PARAMS).text)
        stream = engine.stream("The quick brown", PARAMS)
        parts = [next(stream).text]
        engine.close(drain=True)
        assert "".join([*parts, *(chunk.text for chunk in stream)]) == want[0]
        with pytest.raises(EngineClosed):
            engine.complete("The quick brown", PARAMS)
        del engine, stream
        gc.collect()
        sizes.append(resident_bytes() or 0)
        return sizes[-1]

    def memory_comes_back() -> bool:
        """One pool and a copy of the weights are 32 MiB and more. Other memory of this process, and memory that an
        allocator keeps, does not grow with every four engines."""
        before = swap()
        return [swap() for _ in range(4)][-1] - before < 40 << 20

    swap()
    assert shown(memory_comes_back, 5), sizes


@pytest.mark.fault(34)
@pytest.mark.parametrize("threads", [0, 4])
def test_tokenizer_and_engine_are_used_while_the_interpreter_leaves(threads: int, checkpoint: Path) -> None:
    """By functions that run at exit, by finalisers of module globals, by daemon threads that are never joined."""
    code = (
        "import atexit, sys, threading, time\n"
        "from prelude import Engine, SamplingParams\n"
        "from prelude.tokenizer import Tokenizer\n"
        "path = sys.argv[1]; t = Tokenizer.from_file(path + '/tokenizer.json'); e = Engine.from_pretrained(path)\n"
        "ids = t.encode('Hello there, you').ids\n"
        "class Last:\n"
        "    def __init__(self): self.t, self.ids = t, ids\n"
        "    def __del__(self): print('finaliser', self.t.encode('Hello there, you').ids == self.ids, flush=True)\n"
        "last = Last()\n"
        "def leave():\n"
        "    print('atexit', t.encode('Hello there, you').ids == ids, flush=True)\n"
        "    try: e.complete('Hello', SamplingParams(max_tokens=2)); print('served', flush=True)\n"
        "    except Exception as error: print(type(error).__name__, flush=True)\n"
        "atexit.register(leave)\n"
        "def forever():\n"
        "    while True: t.encode('Hello there, you ' * 2000)\n"
        "for _ in range(int(sys.argv[2])): threading.Thread(target=forever, daemon=True).start()\n"
        "e.complete('Hello', SamplingParams(max_tokens=2)); time.sleep(0.2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, str(checkpoint), str(threads)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")[:-1]
    assert lines[:2] == ["atexit True", "served"], (done.stdout, done.stderr)
    # A daemon thread keeps the module's globals until the process ends, unless another package refers to the module.
    assert lines[2:] in (["finaliser True"], []) if threads else lines[2:] == ["finaliser True"], lines


@pytest.mark.fault(65)
def test_a_salted_tenant_shares_no_memory_of_prompts_or_questions(checkpoint: Path) -> None:
    with Engine.from_pretrained(checkpoint) as engine:

        def calls(*texts: str, **keywords: Any) -> int:  # of the tokenizer, for questions of one number of labels
            before = engine.stats()["tokenizer_calls"]
            engine.decide("x", [YesNo(texts[0]), *(Choice(text, ("one", "two")) for text in texts)], **keywords)
            return int(engine.stats()["tokenizer_calls"]) - before

        calls("Is it Z?")  # the texts of the engine's own template are shared
        first, again = calls("Is it A?", salt="a"), calls("Is it A?", salt="a")
        assert first > again == calls("Is it Z?")
        assert calls("Is it A?", salt="b") == first  # whether a asked before does not show
        assert calls("Is it A?") == calls("Is it B?") < first  # other questions about the same labels
        assert calls("Is it A?") == calls("Is it A?", salt="b") == again
        alone = [calls(*texts, cache="never") for texts in (["Is it A?"], ["Is it C?"], ["Is it A?", "Is it B?"])]
        assert alone == [first, first, first + 1]  # the labels within a request are shared
        assert calls("Is it C?") == calls("Is it D?")  # of which nothing was kept
        kept = engine.stats()["memory"]["question_bytes"]
        for number in range(40):
            assert calls("Is it A?", salt=f"tenant {number}") == first
        grown = engine.stats()["memory"]["question_bytes"] - kept
        assert 0 < grown / 40 < kept / 20


@pytest.mark.fault(65)
@pytest.mark.parametrize(
    ("victim", "curious"), [({"salt": "a"}, {"salt": "b"}), ({"salt": "a"}, {}), ({"cache": "never"}, {})], ids=str
)
def test_a_template_that_a_tenant_brings_is_tokenised_anew_for_another(
    victim: dict[str, Any], curious: dict[str, Any], checkpoint: Path
) -> None:
    def template(text: str) -> DecisionTemplate:
        return DecisionTemplate(state=f"<|im_start|>{text}: {{state}}", question="\n{question} {labels} " + text)

    calls = []
    with Engine.from_pretrained(checkpoint) as engine:
        for sent, tried in (("before", "all"), ("first", "first"), ("second", "third")):
            engine.decide("x", [YesNo("Is it so?")], template=template(sent), **victim)
            before = engine.stats()["tokenizer_calls"]
            engine.decide("x", [YesNo("Is it so?")], template=template(tried), **curious)
            calls.append(engine.stats()["tokenizer_calls"] - before)
    assert calls[1] == calls[2] > 5
