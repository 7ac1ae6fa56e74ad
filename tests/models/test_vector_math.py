"""MKL's vector library has chosen its code before two threads can ask for it at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from prelude.models.kernels import VECTOR_MATH

ROOT = Path(__file__).parents[2]
LEFT_TO_MKL = "acos|asin|atan|cos|sin|tan|tanh|exp|expm1|log|log10|log1p|log2|erf|erfc|erfinv"
"""The functions that torch's builds for x86 hand to MKL's vector library, by ``aten/src/ATen/cpu/vml.h``."""

WATCHED = """
import torch
from torch.overrides import TorchFunctionMode

class Calls(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        if arguments and isinstance(arguments[0], torch.Tensor):
            print(function.__name__, str(arguments[0].dtype), arguments[0].numel())
        return function(*arguments, **(named or {}))

with Calls():
    import prelude.models.kernels
"""


def test_each_function_is_called_on_one_value_before_a_model_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True, cwd=ROOT)
    wanted = {f"{name} torch.{dtype} 1" for name in VECTOR_MATH for dtype in ("float32", "float64")}
    assert wanted <= set(done.stdout.splitlines())


def test_the_product_calls_no_other_function_of_that_library() -> None:
    call = re.compile(rf"(?<!math)(?<!np)\.({LEFT_TO_MKL})_?\(")
    called: dict[str, Path] = {}
    for folder in ("prelude", "cuda"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in call.findall(path.read_text(encoding="utf-8")):
                called.setdefault(name, path)
    assert set(called) <= set(VECTOR_MATH), called
