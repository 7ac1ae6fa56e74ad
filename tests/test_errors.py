"""Errors that are raised on purpose are ``PreludeError``s, as docs/SERVICES.md says."""

from __future__ import annotations

import ast
import importlib
import pickle
from collections.abc import Iterator

import pytest
from prelude.tokenizer import BackendUnavailable, ChatTemplateError, TokenizerError, TokenizerFileError

from prelude import WrongUse
from prelude.errors import PreludeError, reason, short, shown, starting_thread
from prelude.results import Answers
from tests.conftest import ROOT

FOLDERS = (  # modules that callers use
    *("api", "bulk", "calibration", "loading", "recipes", "results", "simulation", "systemone"),
    *("tasks", "terminal", "tools", "values"),
)
# Python's own protocols, an abstract method, and a package that is not installed.
PROTOCOLS = {"AttributeError", "StopIteration", "StopAsyncIteration", "NotImplementedError", "ImportError"}
# Of a request that ended wrongly inside the engine; its caller turns it into a TraceError.
INTERNAL = {
    ("prelude.api.text_streams", "RuntimeError"),
    ("prelude.simulation.replica", "RuntimeError"),
    ("prelude.simulation.traces", "ValueError"),
    ("prelude.values.strict_json", "ValueError"),  # which each entrance makes its own error
}


def raised() -> Iterator[tuple[str, str]]:
    """(module, name) of each class that is called in a ``raise``."""
    for folder in FOLDERS:
        for file in (ROOT / "prelude" / folder).glob("*.py"):
            module = ".".join(part for part in ("prelude", folder, file.stem) if part not in ("", "__init__"))
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    name = node.exc.func
                    if isinstance(name, ast.Name) and name.id[0].isupper():
                        yield module, name.id


def test_errors_that_are_raised_on_purpose_are_prelude_errors() -> None:
    found = {one for one in raised() if one[1] not in PROTOCOLS}
    assert len(found) > 40
    others = set()
    for module, name in found:
        kind = getattr(importlib.import_module(module), name, Exception)
        if not issubclass(kind, PreludeError):
            others.add((module, name))
    assert others == INTERNAL


def test_the_wrong_use_of_an_object_is_one_too() -> None:
    answers = Answers([], None)  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match="had no names") as caught:
        answers["a"]
    assert isinstance(caught.value, PreludeError) and isinstance(caught.value, TypeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "error", [TokenizerFileError("model", "no"), BackendUnavailable("x", "y"), ChatTemplateError("z")]
)
def test_errors_of_the_tokenizer_are_prelude_errors(error: TokenizerError) -> None:
    assert isinstance(error, PreludeError) and isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)


def test_a_reason_is_text_and_never_empty() -> None:
    assert (
        reason(OSError()) == "OSError" and reason(FileNotFoundError(2, "x")) == "there is no such file or directory"
    )
    assert reason(OSError(13, "denied", "/a")) == "denied" and reason(ValueError("bad")) == "bad"


def test_a_value_is_shown_in_80_characters_at_most() -> None:
    assert short("a" * 80) == "a" * 80 and short("a" * 81) == "a" * 79 + "…"
    for value in ("a", b"a", ["a"], ("a",)):
        assert shown(value) == repr(value) and len(shown(value * 10**6)) == 80
    assert shown({"a": 1}) == "{'a': 1}" and shown(type("Bad", (), {"__repr__": None})()) == "<Bad>"


def test_a_thread_that_cannot_start_is_an_error_of_its_own() -> None:
    with pytest.raises(RuntimeError, match=r"^other$"), starting_thread():
        raise RuntimeError("other")
    with pytest.raises(PreludeError, match="no thread can be started"), starting_thread():
        raise RuntimeError("can't start new thread")
