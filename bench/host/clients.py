"""Each client library beside ``decide`` itself, with 64 requests in flight.

    python -m bench clients [--json FILE] [--rounds N] [--only CLIENT]

One process, packaged model, forward and all. A round asks 64 new texts through the client and the same texts through
the engine, the side that begins in turn; processor time of the process, median of the rounds' ratios. The engine gets
the client's own questions: state and questions are read off the client's first request, and both sides' answers
are compared before anything is timed.

Coroutines are gathered on both sides; lm-eval and sentence-transformers hand over lists, as ``run_many`` takes them.
A library that is not installed is left out and named. ``pydantic-ai`` is
the model class alone, ``pydantic-ai Agent`` has that library's agent graph around each request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, three
from prelude import AsyncEngine, Embed, Engine, EngineConfig, Loglikelihood
from prelude.systemone import SystemOne
from prelude.systemone.request import parse

IN_FLIGHT, ROUNDS, CLOSE = 64, 30, 1e-5
TICKET = "I was charged twice in March, and the refund that I was promised has not arrived. Please fix it today. "
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Is the customer asking for money back?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Billing": "Payments", "Sales": None}},
    "anger": {"type": "score", "instructions": "How frustrated is the customer?", "criteria": ["calm", "very angry"]},
}


@dataclass
class Sides:
    """One list of texts asked through the client, and through the engine. ``same`` raises where they differ."""

    client: Callable[[Sequence[str]], Any]
    engine: Callable[[Sequence[str]], Any]
    same: Callable[[], None]


class Noted(SystemOne):
    """Keeps the last request and its body."""

    request: Any = None
    body: Any = None

    async def aanswer(self, request: Any, **keywords: Any) -> dict[str, Any]:
        self.request, self.body = request, await super().aanswer(request, **keywords)
        return self.body

    async def adecisions(self, request: Any, **keywords: Any) -> dict[str, Any]:
        self.request, self.body = request, await super().adecisions(request, **keywords)
        return self.body


class Bench:
    """One loop for all coroutines of both sides."""

    def __init__(self, engine: Engine) -> None:
        self.sync = engine
        self.awaited = AsyncEngine(engine)
        self.loop = asyncio.new_event_loop()

    def gathered(self, ask: Callable[[str], Awaitable[Any]]) -> Callable[[Sequence[str]], Any]:
        async def all_of(texts: Sequence[str]) -> list[Any]:
            return await asyncio.gather(*[ask(text) for text in texts])

        return lambda texts: self.loop.run_until_complete(all_of(texts))

    def decisions(self, make: Callable[[SystemOne], Callable[[str], Awaitable[Any]]]) -> Sides:
        """``make(one)``: a function that asks a client over ``one`` about a text."""
        noted = Noted(self.awaited)
        mark = "the text itself"
        self.loop.run_until_complete(_wrapped(make(noted)(mark)))
        pattern = json.dumps(_asked(noted.request))
        parsed = parse(_asked(noted.request), {})
        questions = dict(zip(parsed.names, parsed.questions))

        def direct(text: str) -> Awaitable[Any]:
            state = json.loads(pattern.replace(mark, text))["state"]
            return self.awaited.decide(state, questions)

        def same() -> None:
            text = next(texts(7))[0]
            self.loop.run_until_complete(_wrapped(make(noted)(text)))
            answers = self.loop.run_until_complete(_wrapped(direct(text)))
            for ours, theirs in zip(answers, _probabilities(noted.body)):
                np.testing.assert_allclose(list(ours.probabilities.values())[: len(theirs)], theirs, atol=CLOSE)

        return Sides(self.gathered(make(SystemOne(self.awaited))), self.gathered(direct), same)


async def _wrapped(one: Awaitable[Any]) -> Any:
    return await one


def _asked(request: Any) -> dict[str, Any]:
    """The request in System One's form; OpenAI's has a list of questions."""
    if "input" not in request:
        return {"state": request["state"], "questions": request["questions"]}
    found: dict[str, Any] = {}
    for at, one in enumerate(request["questions"]):
        asked: dict[str, Any] = {"type": {"predicate": "noul"}.get(one["type"], one["type"])}
        asked["instructions"] = one["instructions"]
        if one["type"] == "choice":
            asked["criteria"] = {option["value"]: option.get("description") for option in one["choices"]}
        found[one.get("name") or str(at)] = asked
    return {"state": request["input"], "questions": found}


def _probabilities(body: Any) -> Iterator[list[float]]:
    answers = body["answers"]
    for answer in answers.values() if isinstance(answers, dict) else answers:
        shares = answer.get("probabilities")
        if shares is None:
            yield [answer.get("noul", answer.get("probability"))]
        else:
            yield list(shares.values()) if isinstance(shares, dict) else [share["probability"] for share in shares]


def texts(seed: int) -> Iterator[list[str]]:
    """Lists of new texts of about 200 tokens."""
    rng = np.random.default_rng(seed)
    words = TICKET.split()
    while True:
        yield [f"{rng.integers(1 << 30)} " + " ".join(rng.choice(words, 150).tolist()) for _ in range(IN_FLIGHT)]


# ------------------------------------------------------------------ the clients


def langchain(bench: Bench) -> Sides:
    from langchain_core.decisions import Choice, Noul, Score

    from prelude.integrations.langchain import PreludeDecisions

    kinds = {"noul": Noul, "choice": Choice, "score": Score}
    questions = {
        name: kinds[one["type"]](**{key: value for key, value in one.items() if key != "type"})
        for name, one in QUESTIONS.items()
    }

    def make(one: SystemOne) -> Callable[[str], Awaitable[Any]]:
        model = PreludeDecisions(engine=one)
        return lambda text: model.ainvoke({"state": text, "questions": questions})

    return bench.decisions(make)


def pydantic_ai(bench: Bench) -> Sides:
    from pydantic_ai.models import decision as of

    from prelude.integrations.pydantic_ai import PreludeModel

    questions = {
        "refund": of.NoulQuestion(instructions="Is the customer asking for money back?"),
        "team": of.ChoiceQuestion(instructions="Which team?", criteria={"Billing": "Payments", "Sales": None}),
        "anger": of.ScoreQuestion(instructions="How frustrated is the customer?", criteria=["calm", "very angry"]),
    }

    def make(one: SystemOne) -> Callable[[str], Awaitable[Any]]:
        model = PreludeModel(one)
        return lambda text: model.decide(
            of.DecisionRequest(state=text, questions=questions, images={}, messages=[]), {}
        )

    return bench.decisions(make)


def pydantic_ai_agent(bench: Bench) -> Sides:
    """With the agent graph of the library around each request."""
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent

    from prelude.integrations.pydantic_ai import PreludeModel

    class Ticket(BaseModel):
        """A ticket, routed."""

        team: Literal["billing", "sales"] = Field(description="Which team?")
        refund: bool = Field(description="Is the customer asking for money back?")
        late: bool = Field(description="Is it late?")

    def make(one: SystemOne) -> Callable[[str], Awaitable[Any]]:
        agent = Agent(PreludeModel(one), output_type=Ticket)
        return lambda text: agent.run(text)

    return bench.decisions(make)


def dspy(bench: Bench) -> Sides:
    import dspy as library

    from prelude.integrations.dspy import PreludeDecisions

    class Triage(library.Signature):  # type: ignore[misc, name-defined]
        """Triage a ticket."""

        ticket: str = library.InputField()
        team: Literal["billing", "sales"] = library.OutputField(desc="Which team?")
        refund: bool = library.OutputField(desc="Is the customer asking for money back?")
        late: bool = library.OutputField(desc="Is it late?")

    def make(one: SystemOne) -> Callable[[str], Awaitable[Any]]:
        predict, lm = library.Predict(Triage), PreludeDecisions(one)

        async def ask(text: str) -> Any:
            with library.context(lm=lm):
                return await predict.acall(ticket=text)

        return ask

    return bench.decisions(make)


def typesafe(bench: Bench) -> Sides:
    import typesafe_sdk as sdk

    from prelude.integrations.transports import AsyncTransport

    kinds = {"noul": sdk.Noul, "choice": sdk.Choice, "score": sdk.Score}
    questions = {
        name: kinds[one["type"]](**{key: value for key, value in one.items() if key != "type"})
        for name, one in QUESTIONS.items()
    }

    def make(one: SystemOne) -> Callable[[str], Awaitable[Any]]:
        client = sdk.AsyncTypeSafeClient(api_key="local", transport=AsyncTransport(one), compression=False)
        return lambda text: client.system_one(state=text, questions=questions)

    return bench.decisions(make)


def openai(bench: Bench) -> Sides:
    import httpx2
    import openai as sdk

    from prelude.integrations.transports import AsyncTransport

    if int(sdk.__version__.split(".")[0]) < 3:
        raise ImportError("openai below 3")
    questions = [
        {"type": "predicate", "name": "refund", "instructions": "Is the customer asking for money back?"},
        {
            "type": "choice",
            "name": "team",
            "instructions": "Which team?",
            "choices": [{"value": "A"}, {"value": "B"}],
        },
        {"type": "predicate", "name": "late", "instructions": "Is it late?"},
    ]

    def make(one: SystemOne) -> Callable[[str], Awaitable[Any]]:
        http = httpx2.AsyncClient(transport=AsyncTransport(one))
        client = sdk.AsyncOpenAI(api_key="local", http_client=http)
        return lambda text: client.decisions.create(model=one.name, input=text, questions=questions)

    return bench.decisions(make)


def lm_eval(bench: Bench) -> Sides:
    from lm_eval.api.instance import Instance

    from prelude.integrations.lm_eval import PreludeLM

    lm = PreludeLM(engine=bench.sync)

    def client(given: Sequence[str]) -> Any:
        asked = [Instance("loglikelihood", {}, (text, f" {at % 9}"), at) for at, text in enumerate(given)]
        return lm.loglikelihood(asked, disable_tqdm=True)

    def engine(given: Sequence[str]) -> Any:
        tasks = [Loglikelihood(text, f" {at % 9}") for at, text in enumerate(given)]
        return [(one.total, one.is_greedy) for one in bench.sync.run_many(tasks)]

    def same() -> None:
        given = next(texts(7))
        np.testing.assert_allclose(client(given), engine(given), atol=1e-4)

    return Sides(client, engine, same)


def sentence_transformers(bench: Bench) -> Sides:
    from prelude.integrations.sentence_transformers import SentenceEncoder

    encoder = SentenceEncoder(bench.sync, pooling="mean")

    def engine(given: Sequence[str]) -> Any:
        return np.stack(bench.sync.run_many([Embed(text, pooling="mean", truncation="tail") for text in given]))

    def same() -> None:
        given = next(texts(7))
        np.testing.assert_allclose(encoder.encode(given), engine(given), atol=CLOSE)

    return Sides(encoder.encode, engine, same)


CLIENTS = {
    "langchain": langchain,
    "pydantic-ai": pydantic_ai,
    "pydantic-ai Agent": pydantic_ai_agent,
    "dspy": dspy,
    "typesafe-sdk": typesafe,
    "openai 3": openai,
    "lm-eval": lm_eval,
    "sentence-transformers": sentence_transformers,
}


# ------------------------------------------------------------------ measuring


def measure(report: Report, client: str, sides: Sides, rounds: int) -> None:
    sides.same()
    given = texts(1)
    took: dict[str, list[float]] = {"client": [], "decide": []}
    both = {"client": sides.client, "decide": sides.engine}
    for at in range(-3, rounds):
        now = next(given)
        for name in ("client", "decide") if at % 2 else ("decide", "client"):
            fresh = [f"{name[0]}{text}" for text in now]  # each side computes its texts anew
            began = time.process_time()
            both[name](fresh)
            if at >= 0:
                took[name].append((time.process_time() - began) * 1e6 / IN_FLIGHT)
    report.add(client, "client / decide", three([a / b for a, b in zip(took["client"], took["decide"])]), "x", "1.15")
    for name, values in took.items():
        report.add(client, name, three(values), "us")


def main() -> None:
    parser = options_parser(__doc__)
    add_outputs(parser, plot=False)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=list(CLIENTS), action="append", help="this client; may be given again")
    options = parser.parse_args()
    report = Report("Clients over their own call to decide")
    with Engine.from_pretrained(dtype="float32", config=EngineConfig(kv_bytes=1 << 24)) as engine:
        for name in options.only or CLIENTS:
            try:
                sides = CLIENTS[name](Bench(engine))
            except ImportError as error:
                print(f"{name:22} left out: {error}")
                continue
            measure(report, name, sides, options.rounds)
    report.finish(options)


if __name__ == "__main__":
    main()
