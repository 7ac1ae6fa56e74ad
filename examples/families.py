"""One small function for each family of loads that end with their prompt: judging, grading, routing, embedding,
reranking, preferring.

    python examples/families.py [--model DIR_OR_HUB_NAME]

None of them generates a token: each reads numbers at the end of a prompt. The model that ships with the package knows
two questions alone; its figures here show the form. Name an instruction-tuned model for answers that make sense.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from prelude import Choice, Decide, Embed, Engine, Noul, Score


def judge(engine: Engine, question: str, one: str, other: str) -> float:
    """How probable it is that ``one`` is the better answer (MT-Bench, Chatbot Arena). Asked in both orders, since
    models lean towards a place; the mean does not depend on which answer is named first."""
    ask = [Choice("Which answer is better?", ["first", "second"])]
    states = [f"{question}\n\nFirst answer: {a}\n\nSecond answer: {b}" for a, b in ((one, other), (other, one))]
    here, there = engine.run_many([Decide(state, ask) for state in states])
    return (here[0].probabilities["first"] + there[0].probabilities["second"]) / 2


def grade(engine: Engine, text: str, criteria: Sequence[str]) -> dict[str, float]:
    """The mean level from 1 to 5 of each criterion, weighted by the probability of each level (G-Eval, Prometheus 2).
    The text is read once for all of them."""
    answers = engine.decide(text, {name: Score(f"How good is the text's {name}?", 5) for name in criteria})
    return {name: float(answer.expected or 0.0) for name, answer in answers.named.items()}


def route(engine: Engine, request: str, threshold: float = 0.5) -> str:
    """Which model a request goes to (RouteLLM): the large one where the small one would probably fail."""
    needs = engine.decide(request, [Noul("Does this request need a large language model?")])[0].probability
    return "large" if needs >= threshold else "small"


def similarities(engine: Engine, texts: Sequence[str]) -> list[list[float]]:
    """The cosine of each pair of texts (Sentence-BERT)."""
    vectors = engine.run_many([Embed(text, pooling="mean") for text in texts])
    return [[float(a @ b) for b in vectors] for a in vectors]


def rerank(engine: Engine, query: str, documents: Sequence[str]) -> list[tuple[float, str]]:
    """The documents by the probability that each one answers ``query`` (RankGPT, one document at a time), for models
    without a recipe of their own; ``engine.rerank`` takes rerankers. The query stands first, so that it is read once
    for all documents."""
    ask = [Noul("Does the document answer the query?")]
    asked = [Decide(f"Query: {query}\n\nDocument: {document}", ask) for document in documents]
    scores = [found[0].probability for found in engine.run_many(asked)]
    return sorted(zip(scores, documents), key=lambda pair: -pair[0])


def prefers(engine: Engine, request: str, chosen: str, rejected: str) -> bool:
    """Whether the answer that people chose scores higher (RewardBench), by the probability that an answer is good;
    ``engine.reward`` takes reward models."""
    ask = [Noul("Is this a good answer to the request?")]
    asked = [Decide(f"Request: {request}\n\nAnswer: {answer}", ask) for answer in (chosen, rejected)]
    better, worse = engine.run_many(asked)
    return better[0].probability > worse[0].probability


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default=None, help="a model directory or a hub name; the packaged model by default"
    )
    chosen = parser.parse_args()
    question, good, bad = "Why is the sky blue?", "Air scatters blue light more than red.", "Because I say so."
    with Engine.from_pretrained(chosen.model) as engine:
        print(f"judge    {judge(engine, question, good, bad):.3f} that the first answer is better")
        for name, level in grade(engine, good, ["clarity", "accuracy"]).items():
            print(f"grade    {level:.2f} of 5 for {name}")
        print(f"route    to the {route(engine, question)} model")
        print(f"embed    cosine {similarities(engine, [good, bad])[0][1]:.3f}")
        for score, document in rerank(engine, question, [good, bad]):
            print(f"rerank   {score:.3f}  {document}")
        print(f"reward   the chosen answer scores {'higher' if prefers(engine, question, good, bad) else 'lower'}")


if __name__ == "__main__":
    main()
