"""HF's own Python tests, read through prelude.tokenizer.

    python -m tests.hf_suite CHECKOUT --files DIR [arguments of pytest]

``CHECKOUT`` is a clone of huggingface/tokenizers. ``DIR`` has the folders gpt2, roberta, bert-base-uncased, t5,
llama2, llama-3.2 and qwen3, each with a tokenizer.json: the files that the tests would download are made of these,
and a test whose file cannot be made is skipped. docs/TOKENIZER.md has the result, and the reason of each test that
fails.

The tests build and train tokenizers, which is left out here. So this file, as a plugin of pytest, puts a module in
the place of ``tokenizers``: a tokenizer of it is built by HF, and loaded anew here after each change; all reads
of it, its components among them, are reads of ours. Components that tests make by themselves are made here.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import tokenizers as theirs

FILES = "PRELUDE_HF_SUITE_FILES"
LEFT_OUT = (
    "--ignore=tests/test_benchmarks.py",  # times
    "--deselect=tests/bindings/test_tokenizer.py::TestAsyncTokenizer::test_performance_comparison",  # times
    "--ignore=tests/documentation/test_tutorial_train_from_iterators.py",  # trains with the package ``datasets``
)
PRETRAINED = {  # HF's name -> a folder of DIR
    "gpt2": "gpt2",
    "hf-internal-testing/gpt-oss-20b": "qwen3",  # the tests compare calls of one tokenizer with each other
    "hf-internal-testing/Llama-3.1-8B-Instruct": "llama-3.2",
    "hf-internal-testing/llama-new-metaspace": "llama2",
    "t5-base": "t5",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--files", type=Path, required=True)
    options, rest = parser.parse_known_args()
    here = Path(__file__).resolve().parent
    environment = {**os.environ, FILES: str(options.files.resolve()), "PYTHONPATH": str(here), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "pytest", "tests", "-p", "hf_suite", "-q", "-rfEs", "-p", "no:cacheprovider"]
    command += [*LEFT_OUT, *rest]
    return subprocess.run(command, cwd=options.checkout / "bindings" / "python", env=environment).returncode


# ---- the files that tests download
def _folder(name: str) -> Path:
    path = Path(os.environ[FILES]) / name / "tokenizer.json"
    if not path.exists():
        pytest.skip(f"needs {name}/tokenizer.json")
    return path


def _model(name: str) -> Any:
    return json.loads(_folder(name).read_text(encoding="utf-8"))["model"]


def _merges() -> str:
    pairs = _model("roberta")["merges"]
    lines = (pair if isinstance(pair, str) else " ".join(pair) for pair in pairs)
    return "#version: 0.2\n" + "\n".join(lines) + "\n"


def _words() -> str:
    vocab: dict[str, int] = _model("bert-base-uncased")["vocab"]
    return "\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n"


MADE = {
    "roberta-base-vocab.json": lambda: json.dumps(_model("roberta")["vocab"]),
    "roberta-base-merges.txt": _merges,
    "bert-base-uncased-vocab.txt": _words,
    "big.txt": lambda: "The quick brown fox jumps over the lazy dog, 31 times.\nHow are you today?\n" * 2000,
    "small.txt": lambda: "The quick brown fox jumps over the lazy dog.\nHow are you today?\n" * 50,
}


def _download(repo_id: str, filename: str, **_: Any) -> str:
    if filename not in MADE:
        pytest.skip(f"needs {filename}, which is on HF's hub alone")
    path = Path("tests") / "data" / filename
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(MADE[filename](), encoding="utf-8")
    return str(path)


def _pretrained(name: str, *args: Any, **kwargs: Any) -> Any:
    if name not in PRETRAINED:
        pytest.skip(f"needs the tokenizer {name}, which is on HF's hub alone")
    whole = json.loads(_folder(PRETRAINED[name]).read_text(encoding="utf-8"))
    if name.endswith("llama-new-metaspace"):
        whole["normalizer"] = None
        whole["pre_tokenizer"] = {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False
        }  # fmt: skip
    return Building(_theirs=theirs.Tokenizer.from_str(json.dumps(whole)))


# ---- the module in the place of ``tokenizers``
def _to_hf(value: Any) -> Any:
    """HF's object for one of ours."""
    import prelude.tokenizer as ours

    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_hf, value))
    if isinstance(value, ours.AddedToken):
        flags = {name: getattr(value, name) for name in ("single_word", "lstrip", "rstrip", "special")}
        if value._normalized is not None:
            flags["normalized"] = value._normalized
        return theirs.AddedToken(value.content, **flags)
    if isinstance(value, ours.components.Component):
        return getattr(value, "_written", None) or value._theirs
    return value


class Building:
    """HF's tokenizer for changes, ours for the rest."""

    def __init__(self, model: Any = None, _theirs: Any = None) -> None:
        vars(self).update(_theirs=_theirs or theirs.Tokenizer(_to_hf(model)), _version=None, _loaded=None)

    @staticmethod
    def from_file(path: str) -> Building:
        return Building(_theirs=theirs.Tokenizer.from_file(path))

    @staticmethod
    def from_str(text: str) -> Building:
        return Building(_theirs=theirs.Tokenizer.from_str(text))

    @staticmethod
    def from_buffer(data: bytes) -> Building:
        return Building(_theirs=theirs.Tokenizer.from_buffer(data))

    from_pretrained = staticmethod(_pretrained)

    def read(self) -> Any:
        """Our tokenizer for HF's as it is now."""
        from prelude.tokenizer import Tokenizer
        from prelude.tokenizer.hf.backend import version

        now = version(self._theirs)
        if now != self._version:
            loaded = Tokenizer.from_str(self._theirs.to_str(), cache=False)
            loaded.encode_special_tokens = self._theirs.encode_special_tokens
            vars(self).update(_version=now, _loaded=loaded)
        return self._loaded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("add_tokens", "add_special_tokens", "train", "train_from_iterator"):
            return lambda *args, **kwargs: self._changed(getattr(self._theirs, name), args, kwargs)
        if name in ("enable_truncation", "enable_padding", "no_truncation", "no_padding"):
            return lambda *args, **kwargs: [getattr(t, name)(*args, **kwargs) for t in (self._theirs, self.read())][1]
        return getattr(self.read(), name)

    def _changed(self, change: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        converted = _to_hf(args)
        result = change(*converted, **{name: _to_hf(value) for name, value in kwargs.items()})
        if args and isinstance(args[0], list):
            for mine, other in zip(args[0], converted[0]):
                if isinstance(other, theirs.AddedToken):
                    mine.special = other.special  # HF's add_special_tokens sets it
        return result

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._theirs, name, _to_hf(value))

    def __reduce__(self) -> Any:
        return Building.from_str, (self._theirs.to_str(),)

    def __repr__(self) -> str:
        return repr(self.read())

    def __str__(self) -> str:
        return str(self.read())


def _replace_tokenizers() -> None:
    import huggingface_hub
    import prelude.tokenizer as ours
    from prelude.tokenizer.backends.reference import ReferenceCore
    from prelude.tokenizer.hf.backend import begin_watching

    ReferenceCore.package = staticmethod(lambda feature: theirs)  # type: ignore[method-assign]
    huggingface_hub.hf_hub_download = _download
    begin_watching()

    class DecodeStream(ours.DecodeStream):
        def step(self, tokenizer: Any, id: Any) -> str | None:
            return super().step(tokenizer.read() if isinstance(tokenizer, Building) else tokenizer, id)

        def __copy__(self) -> Any:
            made = super().__copy__()
            made.__class__ = DecodeStream
            return made

    root = types.ModuleType("tokenizers")
    vars(root).update({name: value for name, value in vars(ours).items() if not name.startswith("_")})
    vars(root).update(__path__=theirs.__path__, __version__=theirs.__version__, Tokenizer=Building)
    vars(root).update(NormalizedString=theirs.NormalizedString, PreTokenizedString=theirs.PreTokenizedString)
    root.trainers = theirs.trainers  # type: ignore[attr-defined]
    decoders = types.ModuleType("tokenizers.decoders")
    vars(decoders).update({**vars(ours.decoders), "DecodeStream": DecodeStream})
    root.decoders = decoders  # type: ignore[attr-defined]
    for name in [n for n in sys.modules if n.split(".")[0] == "tokenizers"]:
        del sys.modules[name]
    sys.modules["tokenizers"] = root
    for name in ("models", "normalizers", "pre_tokenizers", "processors", "decoders", "trainers"):
        sys.modules[f"tokenizers.{name}"] = getattr(root, name)
    implementations = importlib.import_module("tokenizers.implementations")  # HF's own, over the module made here
    for name in dir(implementations):
        if name.endswith("Tokenizer"):
            setattr(root, name, getattr(implementations, name))


# ---- the plugin
def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "asyncio: a coroutine")
    _replace_tokenizers()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:  # trainers are HF's, and take HF's added tokens
        if item.module.__name__.endswith("test_trainers"):
            item.module.AddedToken = theirs.AddedToken


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


if __name__ == "__main__":
    sys.exit(main())
