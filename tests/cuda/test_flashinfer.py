"""FlashInfer's own sources against ``attention.py``: names and order of the arguments. Nothing of it is imported: it
needs a GPU build of torch. ``PRELUDE_FLASHINFER`` names a wheel where the package is not installed."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from prelude.cuda import attention
from prelude.cuda.attention import VERSION, _used

ROOT = Path(__file__).resolve().parents[2]
WRAPPERS = {
    "BatchPrefillWithRaggedKVCacheWrapper": "prefill.py",
    "BatchPrefillWithPagedKVCacheWrapper": "prefill.py",
    "BatchDecodeWithPagedKVCacheWrapper": "decode.py",
}


@cache
def sources() -> dict[str, str]:
    """The files that the tests read, by name. Skips where there are none."""
    wanted = ("prefill.py", "decode.py")
    given = os.environ.get("PRELUDE_FLASHINFER")
    if given:
        with zipfile.ZipFile(given) as wheel:
            return {name: wheel.read(f"flashinfer/{name}").decode() for name in wanted}
    found = importlib.util.find_spec("flashinfer")
    if found is None or found.origin is None:
        pytest.skip("flashinfer is not installed, and PRELUDE_FLASHINFER names no wheel of it")
    if metadata.version("flashinfer-python") != VERSION:
        pytest.skip(f"flashinfer is {metadata.version('flashinfer-python')}, not {VERSION}")
    return {name: (Path(found.origin).parent / name).read_text(encoding="utf-8") for name in wanted}


def function(file: str, name: str, of: str | None = None) -> ast.FunctionDef:
    """The last definition: those before it are overloads."""
    tree = ast.parse(sources()[file])
    body = tree.body
    if of is not None:
        body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == of)
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name][-1]


def parameters(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]


def passed_to(wrapper: str) -> set[str | None]:
    """The names by which attention.py passes arguments to the constructor."""
    tree = ast.parse(Path(attention.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    (call,) = [node for node in calls if node.func.attr == wrapper]
    return {keyword.arg for keyword in call.keywords}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_take_the_arguments_that_are_passed(name: str) -> None:
    """And have the pinned buffer that a plan fills and its vector of numbers, which are private to FlashInfer."""
    file = WRAPPERS[name]
    made, run, reset = (
        parameters(function(file, method, name)) for method in ("__init__", "run", "reset_workspace_buffer")
    )
    assert passed_to(name) <= set(made) and made[1:3] == ["float_workspace_buffer", "kv_layout"]
    assert {"out", "lse", "return_lse"} <= set(run)
    assert run[1:4] == ["q", "k", "v"] if "Ragged" in name else run[1:3] == ["q", "paged_kv_cache"]
    assert reset[1:] == ["float_workspace_buffer", "int_workspace_buffer"]
    body = sources()[file]
    body = body[body.index(f"class {name}") :]
    for attribute in ("self._pin_memory_int_workspace_buffer", "self._int_workspace_buffer", "self._plan_info ="):
        assert attribute in body


def test_plans_take_the_arguments_that_are_passed_in_this_order() -> None:
    ragged = parameters(function("prefill.py", "plan", "BatchPrefillWithRaggedKVCacheWrapper"))
    assert ragged[1:6] == ["qo_indptr", "kv_indptr", "num_qo_heads", "num_kv_heads", "head_dim_qk"]
    paged = parameters(function("prefill.py", "plan", "BatchPrefillWithPagedKVCacheWrapper"))
    tables = ["paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"]
    heads = ["num_qo_heads", "num_kv_heads", "head_dim_qk", "page_size"]
    assert paged[1:9] == ["qo_indptr", *tables, *heads]
    decode = parameters(function("decode.py", "plan", "BatchDecodeWithPagedKVCacheWrapper"))
    assert decode[1:8] == ["indptr", "indices", "last_page_len", *heads[:2], "head_dim", "page_size"]
    named = {"disable_split_kv", "q_data_type", "kv_data_type"}
    assert named | {"causal"} <= set(ragged) and named | {"causal"} <= set(paged)
    legacy = re.search(r"_BATCH_DECODE_PLAN_LEGACY_POS_ARGS = \((.*?)\)", sources()["decode.py"], re.S)
    assert legacy is not None and named <= set(re.findall(r'"(\w+)"', legacy[1])), "decode's plan takes them by name"


def test_the_release_is_pinned() -> None:
    assert f'"flashinfer-python=={VERSION}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "plan, nbytes",
    [
        ([33, 128, 0, 64, 0, 144, 288, 0, 432, 444, 0, 0, 464, 1, 0], 497),
        ([0, 64, 128, 192, 256, 320, 384, 448, 0], 512),
        ([33, 0, 0, 0, 144, 288, 448, 424, 1, 1], 481),
        ([16, 0, 0, 0, 64, 128, 0, 196, 1, 0], 200),
    ],
)
def test_bytes_of_a_plan(plan: list[int], nbytes: int) -> None:
    assert _used(plan) == nbytes
    with pytest.raises(RuntimeError, match=f"this code was read against {VERSION}"):
        _used([*plan, 0, 0, 0, 0, 0, 0, 0])
