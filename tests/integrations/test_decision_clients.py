"""LangChain, pydantic-ai, DSPy, typesafe-sdk and openai over one engine: the answers are those of ``SystemOne``."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from prelude import Engine
from prelude.errors import DeadlineExceeded, EngineClosed, InvalidRequest, QueueFull, UnknownParameter
from prelude.systemone import SystemOne

STATE = "I was charged twice for my order and want my money back."
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Does the customer want money back?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Billing": "Invoices", "Sales": None}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["later", "today", "now"]},
}


@pytest.fixture(scope="module")
def expected(engine: Engine) -> dict[str, Any]:
    answers: dict[str, Any] = SystemOne(engine).answer({"state": STATE, "questions": QUESTIONS})["answers"]
    return answers


def test_importing_prelude_imports_no_client() -> None:
    code = (
        "import sys, prelude, prelude.api.engine, prelude.integrations; "
        "print([m for m in ('langchain_core', 'pydantic_ai', 'dspy', 'lm_eval', 'httpx2', 'openai', 'opentelemetry') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------ langchain
def test_langchain_decisions(engine: Engine, expected: dict[str, Any]) -> None:
    core = pytest.importorskip("langchain_core", minversion="1.8")
    from langchain_core.decisions import Choice, Noul, Score
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    from prelude.integrations.langchain import PreludeDecisions

    model = PreludeDecisions(engine=engine, model="packaged")
    questions = {
        "refund": Noul(instructions="Does the customer want money back?"),
        "team": Choice(instructions="Which team?", criteria={"Billing": "Invoices", "Sales": None}),
        "urgency": Score(instructions="How urgent?", criteria=["later", "today", "now"]),
    }
    request = {"state": STATE, "questions": questions}
    found = model.invoke(request)
    assert found.model == "packaged" and core is not None
    assert found.nouls["refund"].noul == pytest.approx(expected["refund"]["noul"], abs=1e-5)
    assert found.choices["team"].choice == expected["team"]["choice"]
    assert found.scores["urgency"].score == pytest.approx(expected["urgency"]["score"], abs=1e-4)
    assert found.usage is not None and found.usage["input_tokens"] > 0
    again = asyncio.run(model.ainvoke(request))
    assert again.choices["team"].probabilities == pytest.approx(found.choices["team"].probabilities, abs=1e-5)
    assert len(model.batch([request] * 3)) == 3
    other = model.model_copy(update={"model": "other", "options": {"orders": 2}})
    assert other.invoke(request).model == "other" and model.invoke(request).model == "packaged"
    with pytest.raises(ValueError, match="the name in the responses is the field model"):
        PreludeDecisions(engine=engine, options={"name": "x"})
    with pytest.raises(ValueError, match="truncation: options of a SystemOne"):  # as pydantic raises it
        PreludeDecisions(engine=SystemOne(engine), options={"truncation": "tail"})
    call: Any = {"id": "1", "name": "look", "args": {"at": "order"}, "type": "tool_call"}
    called = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "order"}'}}
    for spoken, messages in (
        (HumanMessage(STATE), [{"role": "user", "content": STATE}]),
        ([HumanMessage(STATE)], [{"role": "user", "content": STATE}]),
        ({"last": HumanMessage(STATE)}, {"last": {"role": "user", "content": STATE}}),
        (
            [
                AIMessage(
                    [{"type": "text", "text": STATE}, {**call, "input": {}, "type": "tool_use"}], tool_calls=[call]
                ),
                ToolMessage("no such order", tool_call_id="1", status="error"),
            ],
            [
                {"role": "assistant", "content": STATE, "tool_calls": [called]},
                {"role": "tool", "content": "no such order", "tool_call_id": "1", "phase": "error"},
            ],
        ),
    ):
        told = model.invoke({"state": spoken, "questions": {"refund": questions["refund"]}})
        plain = SystemOne(engine).answer({"state": messages, "questions": {"refund": QUESTIONS["refund"]}})
        assert told.nouls["refund"].noul == pytest.approx(plain["answers"]["refund"]["noul"], abs=1e-5)


# ------------------------------------------------------------------ pydantic-ai
class Severity(IntEnum):
    """How severe it is."""

    LOW = 0
    HIGH = 1


def test_a_pydantic_ai_agent_fills_its_output_type(engine: Engine) -> None:
    pytest.importorskip("pydantic_ai.models.decision")
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent

    from prelude.integrations.pydantic_ai import PreludeModel

    class Ticket(BaseModel):
        """A ticket, routed."""

        team: Literal["billing", "sales"] = Field(description="Which team?")
        refund: bool = Field(description="Does the customer want money back?")
        severity: Severity
        topics: list[Literal["money", "delivery"]] = Field(description="What is it about?")

    model = PreludeModel(engine, name="packaged")
    run = asyncio.run(Agent(model, output_type=Ticket).run(STATE))
    assert isinstance(run.output, Ticket) and run.output.team in ("billing", "sales")
    assert run.usage.input_tokens > 0
    assert (model.model_name, model.system) == ("packaged", "prelude")


def test_a_pydantic_ai_request_gives_the_answers_of_systemone(engine: Engine, expected: dict[str, Any]) -> None:
    decision = pytest.importorskip("pydantic_ai.models.decision")
    from prelude.integrations.pydantic_ai import PreludeModel

    questions = {
        "refund": decision.NoulQuestion(instructions="Does the customer want money back?"),
        "team": decision.ChoiceQuestion(instructions="Which team?", criteria={"Billing": "Invoices", "Sales": None}),
        "urgency": decision.ScoreQuestion(instructions="How urgent?", criteria=["later", "today", "now"]),
    }
    request = decision.DecisionRequest(state=STATE, questions=questions, images={}, messages=[])
    found = asyncio.run(PreludeModel(engine).decide(request, {})).answers
    assert found["refund"].noul == pytest.approx(expected["refund"]["noul"], abs=1e-5)
    assert found["team"].probabilities == pytest.approx(expected["team"]["probabilities"], abs=1e-5)
    levels = {int(level): share for level, share in expected["urgency"]["probabilities"].items()}
    assert found["urgency"].probabilities == pytest.approx(levels, abs=1e-5)
    assert found["urgency"].legend == {0: "later", 1: "today", 2: "now"}
    with pytest.raises(InvalidRequest, match="images: this model reads text only"):
        asyncio.run(PreludeModel(engine).decide(replace(request, images={"a": object()}), {}))
    sides = decision.NoulCriteria(true="money back is asked for", false=None)
    one = decision.NoulQuestion(instructions="A refund?", criteria=sides)
    told = asyncio.run(PreludeModel(engine).decide(replace(request, questions={"a": one}), {})).answers["a"]
    plain = {"type": "noul", "instructions": "A refund?", "criteria": {"true": "money back is asked for"}}
    said = SystemOne(engine).answer({"state": STATE, "questions": {"a": plain}})["answers"]["a"]
    assert told.noul == pytest.approx(said["noul"], abs=1e-5)


def test_settings_of_pydantic_ai_are_followed_or_refused(engine: Engine) -> None:
    decision = pytest.importorskip("pydantic_ai.models.decision")
    import httpx

    from prelude.integrations.pydantic_ai import PreludeModel

    model = PreludeModel(engine)
    request = decision.DecisionRequest(state=STATE, questions={"a": decision.NoulQuestion(instructions="A refund?")})
    for timeout in (0, httpx.Timeout(5.0, read=0.0)):
        with pytest.raises(DeadlineExceeded):
            asyncio.run(model.decide(request, {"timeout": timeout}))
    for timeout in (600, httpx.Timeout(600.0), httpx.Timeout(None), None):
        assert asyncio.run(model.decide(request, {"timeout": timeout})).answers
    for name in ("extra_body", "extra_headers"):
        with pytest.raises(InvalidRequest) as caught:
            asyncio.run(model.decide(request, {name: {"a": "b"}}))
        assert caught.value.field == name
    assert {"max_retries", "temperature", "seed"} <= model.unsupported_settings


# ------------------------------------------------------------------ dspy
def test_dspy_decisions_sync_async_and_evaluated(engine: Engine) -> None:
    dspy = pytest.importorskip("dspy")
    pytest.importorskip("dspy.experimental")
    from prelude.integrations.dspy import PreludeDecisions

    class Triage(dspy.Signature):  # type: ignore[misc, name-defined]
        """Triage a ticket."""

        ticket: str = dspy.InputField()
        spam: bool = dspy.OutputField(desc="Is it spam?")
        team: Literal["billing", "tech"] = dspy.OutputField(desc="Which team?")

    lm = PreludeDecisions(engine)
    with dspy.context(lm=lm):
        predict = dspy.Predict(Triage)
        found = predict(ticket=STATE)
        assert isinstance(found.spam, bool) and found.team in ("billing", "tech")
        assert asyncio.run(predict.acall(ticket=STATE)).team == found.team
        rows = [dspy.Example(ticket=f"{STATE} {n}", team="billing").with_inputs("ticket") for n in range(8)]
        evaluate = dspy.Evaluate(
            devset=rows,
            metric=lambda row, said, trace=None: row.team == said.team,
            num_threads=4,
            display_progress=False,
        )
        score = evaluate(predict)
        alone = sum(predict(ticket=row.ticket).team == "billing" for row in rows)
        assert float(getattr(score, "score", score)) == pytest.approx(100 * alone / len(rows))


def test_dspy_answers_have_no_more_than_dspy_takes(engine: Engine, expected: dict[str, Any]) -> None:
    pytest.importorskip("dspy")
    from prelude.integrations.dspy import PreludeDecisions

    found = PreludeDecisions(engine)(STATE, QUESTIONS)
    assert set(found["refund"]) == {"noul"} and set(found["team"]) == {"probabilities", "confidence"}
    assert set(found["urgency"]["probabilities"]) == {0, 1, 2}
    assert found["team"]["confidence"] == pytest.approx(expected["team"]["confidence"], abs=1e-4)


def test_dspy_sees_the_calls_as_those_of_its_own_client(engine: Engine, tmp_path: Path) -> None:
    """A saved program, usage, callbacks, history, copies."""
    dspy = pytest.importorskip("dspy")
    from dspy.utils.callback import BaseCallback

    from prelude.integrations.dspy import PreludeDecisions

    class Triage(dspy.Signature):  # type: ignore[misc, name-defined]
        ticket: str = dspy.InputField()
        team: Literal["billing", "tech"] = dspy.OutputField(desc="Which team?")

    class Seen(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            self.calls.append((call_id, instance, inputs["questions"]))

        def on_lm_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
            self.calls.append((call_id, outputs, exception))

    seen, globally = Seen(), Seen()
    lm = PreludeDecisions(engine, callbacks=(seen,))
    predict = dspy.Predict(Triage)
    predict.set_lm(lm)
    with dspy.context(track_usage=True, callbacks=[globally]):
        found = predict(ticket=STATE)
    assert [call[0] for call in seen.calls] == [seen.calls[0][0]] * 2 and seen.calls[0][1] is lm
    assert set(seen.calls[0][2]) == {"team"} and seen.calls[1][1:] == (lm.history[-1]["response"]["answers"], None)
    assert globally.calls[:1] == seen.calls[:1]
    usage = found.get_lm_usage()[lm.model]
    assert usage["prompt_tokens"] > 0 and usage == lm.history[-1]["usage"]
    assert len(lm.history) == 1 and lm.history == predict.history
    asyncio.run(predict.acall(ticket=STATE))
    assert len(lm.history) == 2 and len(seen.calls) == 4
    with dspy.context(disable_history=True):
        predict(ticket=STATE)
    assert len(lm.history) == 2

    path = tmp_path / "program.json"
    predict.save(str(path))
    again = dspy.Predict(Triage)
    again.load(str(path))
    with dspy.context(lm=lm):
        assert again(ticket=STATE).team == found.team
    copied = predict.deepcopy()
    assert copied(ticket=STATE).team == found.team and copied.lm.callbacks == [seen]
    with pytest.raises(UnknownParameter, match="rollout_id"):
        lm.copy(rollout_id=1, temperature=1.0)
    named = PreludeDecisions(engine, name="first").copy(name="second", callbacks=[])
    assert (named.model, named.copy().model, named.copy(name="third").model) == ("second", "second", "third")
    assert lm.copy(callbacks=[]).callbacks == [] and lm.copy().callbacks == [seen] and not lm.copy().history
    lm.inspect_history(file=io.StringIO())


def test_dspy_refuses_what_is_no_text(engine: Engine) -> None:
    dspy = pytest.importorskip("dspy")
    from dspy.adapters.types.base_type import CUSTOM_TYPE_END_IDENTIFIER as END
    from dspy.adapters.types.base_type import CUSTOM_TYPE_START_IDENTIFIER as START

    from prelude.integrations.dspy import PreludeDecisions

    class Look(dspy.Signature):  # type: ignore[misc, name-defined]
        pictures: list[dspy.Image] = dspy.InputField()
        cat: bool = dspy.OutputField(desc="Is it a cat?")

    refused = pytest.raises(InvalidRequest, match="only text is taken")
    with dspy.context(lm=PreludeDecisions(engine)), refused as caught:
        dspy.Predict(Look)(pictures=[dspy.Image("data:image/png;base64,iVBORw0KGgo=")])
    assert caught.value.field == "state.inputs.pictures[0][0]"
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested deeper"):
        PreludeDecisions(engine)({"a": deep}, {"cat": {"type": "noul", "instructions": "?"}})
    for inside in ("", "no JSON", "[" * 100_000, "5", '[{"type": "text"}]'):
        with pytest.raises(InvalidRequest) as caught:
            PreludeDecisions(engine)({"a": f"{START}{inside}{END}"}, {"cat": {"type": "noul", "instructions": "?"}})
        assert caught.value.field is not None and caught.value.field.startswith("state.a")


# ------------------------------------------------------------------ the two SDKs, without a socket
def test_typesafe_sdk_over_the_transport(engine: Engine, expected: dict[str, Any]) -> None:
    sdk = pytest.importorskip("typesafe_sdk")
    pytest.importorskip("httpx2")
    from prelude.integrations.transports import AsyncTransport, Transport

    questions = {
        "refund": sdk.Noul(instructions="Does the customer want money back?"),
        "team": sdk.Choice(instructions="Which team?", criteria={"Billing": "Invoices", "Sales": None}),
        "urgency": sdk.Score(instructions="How urgent?", criteria=["later", "today", "now"]),
    }
    with sdk.TypeSafeClient(
        api_key="local", transport=Transport(engine, name="packaged"), compression=False
    ) as client:
        found = client.system_one(state=STATE, questions=questions)
        assert found.model == "packaged"
        assert found.nouls["refund"].noul == pytest.approx(expected["refund"]["noul"], abs=1e-5)
        assert found.choices["team"].choice == expected["team"]["choice"]
        assert "packaged" in [one.name for one in client.models.list().models]
        with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="levels"):
            client.system_one(
                state="x", questions={"a": {"type": "score", "instructions": "x", "criteria": ["a"] * 11}}
            )
    with sdk.TypeSafeClient(api_key="local", transport=Transport(engine)) as packed:  # zstd, where it is installed
        assert (
            packed.system_one(state=STATE, questions=questions).choices["team"].choice == expected["team"]["choice"]
        )

    async def awaited() -> Any:
        transport = AsyncTransport(engine)
        async with sdk.AsyncTypeSafeClient(api_key="local", transport=transport, compression=False) as client:
            return await client.system_one(state={"text": STATE}, questions=questions)

    assert set(asyncio.run(awaited()).scores["urgency"].probabilities) == {0, 1, 2}


def test_openai_decisions_over_the_transport(engine: Engine, expected: dict[str, Any]) -> None:
    openai = pytest.importorskip("openai", minversion="3.0")
    httpx2 = pytest.importorskip("httpx2")
    from prelude.integrations.transports import Transport

    client = openai.OpenAI(api_key="local", http_client=httpx2.Client(transport=Transport(engine, name="packaged")))
    found = client.decisions.create(
        model="packaged",
        input=STATE,
        questions=[
            {"type": "predicate", "name": "refund", "instructions": "Does the customer want money back?"},
            {
                "type": "choice",
                "instructions": "Which team?",
                "choices": [{"value": "Billing", "description": "Invoices"}, {"value": "Sales"}],
            },
        ],
    )
    assert found.answers[0].probability == pytest.approx(expected["refund"]["noul"], abs=1e-5)
    assert found.answers[1].choice == expected["team"]["choice"]


def test_the_timeout_of_a_client_is_the_deadline_of_its_request(engine: Engine) -> None:
    httpx2 = pytest.importorskip("httpx2")
    from prelude.integrations.transports import AsyncTransport, Transport

    body = {"state": STATE, "questions": QUESTIONS}
    client = httpx2.Client(transport=Transport(engine), base_url="http://prelude.invalid")
    with pytest.raises(httpx2.ReadTimeout):
        client.post("/v1/systemone", json=body, timeout=0.0)
    for timeout in (1e12, None):
        assert client.post("/v1/systemone", json=body, timeout=timeout).status_code == 200

    async def awaited() -> None:
        async with httpx2.AsyncClient(transport=AsyncTransport(engine), base_url="http://prelude.invalid") as other:
            with pytest.raises(httpx2.ReadTimeout):
                await other.post("/v1/systemone", json=body, timeout=0.0)
            assert (await other.post("/v1/systemone", json=body, timeout=600.0)).status_code == 200

    asyncio.run(awaited())


def test_a_transport_over_a_closed_engine_says_when_to_come_again() -> None:
    httpx2 = pytest.importorskip("httpx2")
    from prelude.integrations.transports import Transport

    with Engine.from_pretrained() as closed:
        client = httpx2.Client(transport=Transport(closed), base_url="http://prelude.invalid")
    body = {"state": "x", "questions": {"a": {"type": "noul", "instructions": "?"}}}
    reply = client.post("/v1/systemone", json=body)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (QueueFull("full"), 429, "1"),
        (EngineClosed("closed"), 503, "1"),
        (InvalidRequest("wrong", field="x"), 422, None),
    ],
)
def test_an_answer_says_whether_to_come_again(error: Any, status: int, again: str | None) -> None:
    httpx2 = pytest.importorskip("httpx2")
    from prelude.integrations.transports import failed

    found = failed(httpx2.Request("POST", "http://local/v1/systemone"), error)
    assert (found.status_code, found.headers.get("retry-after")) == (status, again)


def test_transports_read_bodies_as_every_entrance_does(engine: Engine) -> None:
    """Bounded, strict, and with answers of bounded length: half a character in a label is no error of the encoder."""
    httpx2 = pytest.importorskip("httpx2")
    zstandard = pytest.importorskip("zstandard")
    from prelude.integrations.transports import AsyncTransport, Transport

    many = {f"{'n' * 100}{index}": 5 for index in range(2000)}
    half = {"type": "choice", "criteria": {"\ud800": None, "b": None}}
    bodies: list[tuple[int, str | None, bytes]] = [
        (422, None, b'{"state": "x", "state": "y"}'),
        (422, None, b'{"input": "x", "questions": [{"type": "predicate", "instructions": 1e999}]}'),
        (422, None, b'{"state": NaN}'),
        (422, None, b"[" * 2000),
        (413, None, b" " * ((16 << 20) + 1)),
        (413, "zstd", zstandard.compress(b" " * (17 << 20))),
        (415, "gzip", b"{}"),
        (422, None, json.dumps({"state": "x", "questions": {"n" * 5000: {**QUESTIONS["refund"], **many}}}).encode()),
        (422, None, json.dumps({"state": "x", "questions": {"a": half}}).encode()),
        (422, None, json.dumps({"input": "x", "questions": [{"type": "predicate", **many}] * 9}).encode()),
    ]

    def checked(status: int, data: bytes, reply: Any) -> None:
        assert reply.status_code == status, reply.text[:200]
        assert len(reply.content) <= 10 * len(data) + (1 << 16) and reply.json()["detail"]

    async def main() -> None:
        async with httpx2.AsyncClient(transport=AsyncTransport(engine), base_url="http://prelude.invalid") as other:
            for status, encoding, data in bodies:
                headers = {} if encoding is None else {"content-encoding": encoding}
                for route in ("systemone", "decisions"):
                    checked(status, data, client.post(f"/v1/{route}", content=data, headers=headers))
                    checked(status, data, await other.post(f"/v1/{route}", content=data, headers=headers))

    with httpx2.Client(transport=Transport(engine), base_url="http://prelude.invalid") as client:
        asyncio.run(main())
