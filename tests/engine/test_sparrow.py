"""Sparrow's files: the answers of its own program with its trained models, those of its formulas, refusals."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Choice, Decide, Engine, EngineConfig, Noul, Score
from prelude.errors import ConfigError, InvalidRequest, ModelError, PromptTooLong, UnsupportedModel
from prelude.models.sparrow import SparrowModel, read_sparrow
from prelude.systemone import SystemOne

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.-:=%[]_"
VOCAB = ["[PAD]", "[UNK]", *LETTERS, *[f"##{letter}" for letter in LETTERS]]
DIM, HIDDEN, LONGEST = 8, 12, 120
QUESTIONS = [
    Choice("which tool", {"refunds": "refund a payment", "weather": None, "dock": "return"}),
    Noul("is it low"),
    Score("how urgent", ["can wait", "today", "now"]),
    Noul(None, {"true": "yes it is", "false": "not at all"}),
]
STATE = "user: battery: 6%\nfront = -7.25 and dirt_level=34\n\npath: clear"


def arrays(paired: bool, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = [(10 if paired else 6) * DIM, HIDDEN, HIDDEN, 1]
    shapes = {"emb.weight": (len(VOCAB), DIM), "kind.weight": (3, DIM)}
    for at, (inner, out) in enumerate(pairwise(sizes)):
        shapes |= {f"mlp.{2 * at}.weight": (out, inner), f"mlp.{2 * at}.bias": (out,)}
    if paired:
        shapes |= {"g.weight": (DIM, 4), "g.bias": (DIM,), "tau": (1,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(path: Path, tensors: dict[str, np.ndarray], config: dict[str, Any], vocab: Any = None) -> Path:
    """Matrices in rows of 8 bits with a scale each."""
    stored: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if array.ndim == 2:
            scale = np.abs(array).max(axis=1).astype(np.float32) / 127
            stored |= {f"{name}.q8": np.rint(array / scale[:, None]).astype(np.int8), f"{name}.scale": scale}
        else:
            stored[name] = array
    buffer = io.BytesIO()
    np.savez(buffer, **stored)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", json.dumps(config))
        pieces = {piece: at for at, piece in enumerate(VOCAB)}
        archive.writestr("tokenizer.json", json.dumps({"vocab": pieces if vocab is None else vocab}))
        archive.writestr("model.npz", buffer.getvalue())
    return path


def config(paired: bool, **changed: Any) -> dict[str, Any]:
    heat = {"choice": 1.395, "noul": 0.939, "score": 0.555}
    sizes = {"dim": DIM, "hidden": HIDDEN, "vocab_size": len(VOCAB), "max_len": LONGEST}
    return {"arch": "static", "name": "tiny", "kv": paired, "temperature_by_kind": heat, **sizes, **changed}


class Formula:
    """The formulas of the format, in float64, on words of letters that are split one letter a token."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.w = {}
        for name, array in tensors.items():
            if array.ndim == 2:
                scale = np.abs(array).max(axis=1).astype(np.float32) / 127
                array = np.rint(array / scale[:, None]).astype(np.int8).astype(np.float32) * scale[:, None]
            self.w[name] = array.astype(np.float64)

    def mean(self, text: str) -> np.ndarray:
        ids: list[int] = []
        marked = "".join(f" {char} " if char in ".-:=%[]_" else char for char in text.lower())
        for word in marked.split():
            ids += [VOCAB.index(letter if at == 0 else f"##{letter}") for at, letter in enumerate(word)]
        return self.w["emb.weight"][ids[:LONGEST] or [0]].mean(axis=0)

    def logits(self, kind: int, question: str, options: list[str], pairs: list[tuple[str, str, float]]) -> np.ndarray:
        s = unit(self.mean(STATE))
        q = unit(self.mean(question) + self.w["kind.weight"][kind])
        o = np.stack([unit(self.mean(option)) for option in options])
        middle = o.mean(axis=0)
        blocks = [o, s * o, q * o, s * q * o, o - middle, (s - middle) * o]
        if "g.weight" in self.w:
            values = np.array([features(value) for _, _, value in pairs])
            keys, lines = (np.stack([unit(self.mean(pair[at])) for pair in pairs]) for at in (0, 1))
            bound = keys * np.tanh(values @ self.w["g.weight"].T + self.w["g.bias"])
            seen = np.exp(self.w["tau"][0] * (o @ lines.T))
            own = (seen / seen.sum(axis=1, keepdims=True)) @ bound
            blocks += [bound.mean(axis=0) * o, bound.mean(axis=0) * q * o, own, own * q]
        x = np.concatenate([np.broadcast_to(block, o.shape) for block in blocks], axis=1)
        for at in (0, 2):
            x = x @ self.w[f"mlp.{at}.weight"].T + self.w[f"mlp.{at}.bias"]
            x = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return (x @ self.w["mlp.4.weight"].T + self.w["mlp.4.bias"])[:, 0]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


def features(value: float) -> list[float]:
    return [
        float(np.clip(value / 100, -1, 1)),
        float(np.sign(value) * np.log1p(abs(value)) / 5),
        float(0 < abs(value) < 1),
        float(np.clip(value / 10, -1, 1)),
    ]


PAIRS = [("battery", "user", 6.0), ("front", "front = -7.25 and dirt_level=34", -7.25)]
PAIRS += [("and dirt_level", "front = -7.25 and dirt_level=34", 34.0)]


@pytest.mark.parametrize("paired", [False, True])
def test_answers_are_those_of_the_formulas(tmp_path: Path, paired: bool) -> None:
    tensors = arrays(paired)
    formula = Formula(tensors)
    holds = ["the statement does not hold for this state", "the statement holds for this state"]
    asked = [
        (1, "which tool", ["refunds refund a payment", "weather", "dock return"], 1.395),
        (0, "is it low", [f"false {holds[0]}", f"true {holds[1]}"], 0.939),
        (2, "how urgent", ["0 can wait", "1 today", "2 now"], 0.555),
        (0, "", ["false not at all", "true yes it is"], 0.939),
    ]
    with Engine.from_pretrained(write(tmp_path / "tiny.sparrow", tensors, config(paired))) as engine:
        answers = engine.run(Decide(STATE, QUESTIONS))
        for answer, question, (kind, text, options, heat) in zip(answers, QUESTIONS, asked):
            expected = np.exp(formula.logits(kind, text, options, PAIRS) / heat)
            shares = list(answer.probabilities.values())
            shares = shares[::-1] if isinstance(question, Noul) else shares
            assert np.abs(np.array(shares) - expected / expected.sum()).max() < 1e-5
            [alone] = engine.run(Decide(STATE, [question]))
            assert alone.logprobs == answer.logprobs, "the same bits alone and in company"
        with pytest.raises(InvalidRequest, match="'last': a token has the same vector"):
            engine.embed("abc", pooling="last")
        assert np.abs(engine.embed("abc", normalize=False, pooling="mean") - formula.mean("abc")).max() < 1e-6


def test_answers_are_those_of_its_own_program(shared: Path) -> None:
    """Both trained models, from the package on PyPI: text to logprobs."""
    package = importlib.util.find_spec("sparrow_decider")
    if package is None or package.origin is None:
        pytest.skip("the package sparrow-decider with the trained models is not installed")
    recorded = json.loads((shared / "decision" / "sparrow_real.json").read_text(encoding="utf-8"))
    for case in recorded["cases"]:
        with Engine.from_pretrained(Path(package.origin).parent / "models" / f"{case['model']}.sparrow") as engine:
            body = SystemOne(engine).answer({"state": case["state"], "questions": case["questions"]})
            for name, theirs in case["answers"].items():
                ours = body["answers"][name]
                assert ours.get("choice") == theirs.get("choice")
                logits = np.array(case["logits"][name]) / case["temperature"][theirs["type"]]
                shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
                if theirs["type"] == "noul":
                    assert ours["noul"] == pytest.approx(shares[1], abs=1e-6)
                else:
                    assert list(ours["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-6)


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    with Engine.from_pretrained(write(tmp_path / "tiny.sparrow", arrays(True), config(True))) as made:
        yield made


def test_texts_at_the_edges(engine: Engine) -> None:
    """Nothing in the state, a text of no known letters, numbers in other digits and of many characters, and a name of
    a control token."""
    asked = [Choice(None, ["[PAD]", "[UNK]"]), Noul("é")]
    for state in ("", "\N{CJK UNIFIED IDEOGRAPH-6771}", "a: \N{ARABIC-INDIC DIGIT SEVEN}", f"a: {'9' * 100}", "=: 4"):
        shares = [list(answer.probabilities.values()) for answer in engine.run(Decide(state, asked))]
        assert np.isfinite(shares).all()
    seven, same = (engine.run(Decide(f"a: {number}", asked[:1])) for number in ("\N{ARABIC-INDIC DIGIT SEVEN}", "7"))
    assert seven[0].logprobs != same[0].logprobs, "the state's own tokens differ"


def test_longer_texts_are_errors_or_cut(engine: Engine) -> None:
    long = "a " * (LONGEST + 3)
    with pytest.raises(PromptTooLong, match=f"3 tokens longer.*{LONGEST} for the state"):
        engine.run(Decide(long, QUESTIONS[:1]))
    [cut] = engine.run(Decide(long, QUESTIONS[:1], truncation="head"))
    [same] = engine.run(Decide("a " * LONGEST, QUESTIONS[:1]))
    assert cut.logprobs == same.logprobs


def test_verbs_that_such_a_model_lacks_are_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        engine.complete("a b c")
    with pytest.raises(InvalidRequest):
        engine.classify("a b c")
    path = write(tmp_path / "again.sparrow", arrays(False), config(False))
    with pytest.raises(ConfigError, match="computed on a CPU in float32"):
        Engine.from_pretrained(path, device="cuda")
    with pytest.raises(ConfigError, match="computed on a CPU in float32"):
        Engine.from_pretrained(path, config=EngineConfig(quantization="int8"))
    with pytest.raises(ConfigError, match="threads=2 at their defaults"):
        Engine.from_pretrained(path, config=EngineConfig(threads=2))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"arch": "modernbert"}, "unsupported: arch 'modernbert'"),
        ({"dim": 9}, r"mlp.0.weight.q8 is int8 \[12, 80\], i1 \[12, 90\] needed"),
        ({"dim": 10**9}, "dim is 1000000000"), ({"vocab_size": 5}, "vocab_size is 5"), ({"kv": 1}, "kv is 1"),
        ({"hidden": 13}, r"mlp.0.weight.q8 is int8"), ({"max_len": 0}, "max_len is 0"),
        ({"temperature_by_kind": {"choice": 0.1}}, "choice is 0.1"),
        ({"temperature_by_kind": [1]}, "an object is needed"),
    ],
)  # fmt: skip
def test_a_hostile_config_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    path = write(tmp_path / "bad.sparrow", arrays(True), config(True, **changed))
    with pytest.raises((ModelError, UnsupportedModel), match=told):
        Engine.from_pretrained(path)


def test_bounds_and_defaults_of_a_config(tmp_path: Path) -> None:
    def read(**changed: Any) -> SparrowModel:
        made = {name: value for name, value in config(False, **changed).items() if value is not None}
        return read_sparrow(write(tmp_path / "one.sparrow", arrays(False), made))

    told = read(name=None, kv=None, max_len=None, temperature_by_kind=None)
    assert (told.name, told.pairs, told.max_len, told.temperatures) == ("sparrow", None, 512, (1.0, 1.0, 1.0))
    assert read().temperatures == (1.395, 0.555, 0.939), "of a choice, a score and a yes or no"
    for good, wrong in ((8, 7), (1 << 16, (1 << 16) + 1)):
        assert read(max_len=good).max_len == good
        with pytest.raises(ModelError, match=f"max_len is {wrong}"):
            read(max_len=wrong)


def test_hostile_files_are_refused_by_name(tmp_path: Path) -> None:
    bad = arrays(False)
    bad["mlp.0.bias"] = np.full(HIDDEN, np.nan, np.float32)
    huge, missing = arrays(False), arrays(False)
    huge["mlp.0.bias"] = np.zeros((1, 1 << 16), np.float32)[0]
    missing.pop("mlp.2.bias")
    pickled = arrays(False) | {"mlp.0.bias": np.array([{}] * HIDDEN, object)}
    for tensors, told in (
        (bad, "NaN"),
        (huge, "more than|mlp.0.bias is"),
        (missing, "no mlp.2.bias"),
        (pickled, "bias"),
    ):
        with pytest.raises(ModelError, match=told):
            Engine.from_pretrained(write(tmp_path / "bad.sparrow", tensors, config(False)))
    for vocab, told in (([], "not an object"), ({"[UNK]": 1}, "ids are not"), ({"a": "b"}, "not an object")):
        with pytest.raises(ModelError, match=told):
            Engine.from_pretrained(write(tmp_path / "bad.sparrow", arrays(False), config(False), vocab))
    (tmp_path / "text.sparrow").write_text("no archive", encoding="utf-8")
    with pytest.raises(ModelError, match="not a readable archive"):
        Engine.from_pretrained(tmp_path / "text.sparrow")


def archive_of(
    path: Path, arrays: dict[str, bytes], config: dict[str, Any], method: int = zipfile.ZIP_DEFLATED
) -> Path:
    """``arrays``: the content of each ``.npy`` file."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in arrays.items():
            made.writestr(f"{name}.npy", content)
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("config.json", json.dumps(config))
        made.writestr("tokenizer.json", json.dumps({"vocab": {piece: at for at, piece in enumerate(VOCAB)}}))
        made.writestr("model.npz", inner.getvalue())
    return path


def npy(array: np.ndarray, header: str | None = None) -> bytes:
    """``header``: a literal in the place of the array's own."""
    out = io.BytesIO()
    np.save(out, array)
    data = out.getvalue()
    length = int.from_bytes(data[8:10], "little")
    text = data[10 : 10 + length] if header is None else header.encode()
    return data[:8] + len(text).to_bytes(2, "little") + text + data[10 + length :]


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': (), 'fortran_order': False, 'shape': (12,)}",
        "{'descr': None, 'fortran_order': False, 'shape': (12,)}",
        "{'descr': 'x', 'fortran_order': False, 'shape': (12,)}",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (12,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 12}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**400},)}}",
        "{'descr': '>f4', 'fortran_order': False, 'shape': (12,)}",
        "{'descr': ('<f4', (12,)), 'fortran_order': False, 'shape': ()}", "(" * 3000, "-" * 5000 + "1", "", "{}",
    ],
)  # fmt: skip
def test_the_header_of_an_array_is_refused_by_name(header: str, tmp_path: Path) -> None:
    content = {name: npy(array) for name, array in arrays(False).items()}
    path = archive_of(tmp_path / "bad.sparrow", content, config(False))
    Engine.from_pretrained(path).close()
    content["mlp.0.bias"] = npy(arrays(False)["mlp.0.bias"], header)
    with pytest.raises(ModelError, match=r"bad.sparrow: model.npz: mlp.0.bias"):
        Engine.from_pretrained(archive_of(path, content, config(False)))


def test_arrays_are_bounded_together_before_they_are_read(tmp_path: Path) -> None:
    """An archive of 300 KB whose two matrices have 671 million bytes, each of them less than the bound."""
    stored = {"mlp.0.weight.q8": npy(np.zeros((8192, 6 * 2048), np.int8)), "mlp.0.bias": npy(np.zeros(8192, "f4"))}
    stored["mlp.0.weight.scale"] = stored["mlp.0.bias"]
    path = archive_of(tmp_path / "wide.sparrow", stored, config(False, dim=2048, hidden=8192))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(
        ModelError, match=r"wide.sparrow: .* more than 536,870,912 bytes: mlp.2.weight is \[8192, 8192\]"
    ):
        Engine.from_pretrained(path)


def test_archives_are_read_in_one_way(tmp_path: Path) -> None:
    content = {name: npy(array) for name, array in arrays(False).items()}
    path = tmp_path / "odd.sparrow"
    with pytest.raises(UnsupportedModel, match=r"'config.json' is neither stored nor deflated"):
        Engine.from_pretrained(archive_of(path, content, config(False), zipfile.ZIP_LZMA))
    archive_of(path, content, config(False))
    with zipfile.ZipFile(path, "a") as made, pytest.warns(UserWarning, match="Duplicate name"):
        made.writestr("config.json", json.dumps(config(False)))
    with pytest.raises(ModelError, match="a name is there twice"):
        Engine.from_pretrained(path)
    for more, told in ((996, None), (998, "more than 1,000 entries")):
        archive_of(path, content, config(False))
        with zipfile.ZipFile(path, "a") as made:
            for at in range(more):
                made.writestr(str(at), b"")
        if told is None:
            Engine.from_pretrained(path).close()
        else:
            with pytest.raises(ModelError, match=told):
                Engine.from_pretrained(path)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.sparrow", arrays(True), config(True))
    code = (
        "import sys; from prelude import Decide, Engine, Noul\n"
        f"with Engine.from_pretrained({str(path)!r}) as engine: engine.run(Decide('a', [Noul('b')]))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=500).returncode == 0
