"""kernels/*.cu -> cubin: NVRTC through cuda-python, cached on disk by the hash of everything that goes in.

    python -m prelude.cuda.compiler [--arch sm_90a] [--head-dim 64 128]

compiles the kernels of bfloat16 models into the package, beside their sources; a wheel that is built then has them,
and its first start compiles nothing. They serve any compiler of the same major version.

``CompileError`` carries the compiler's log.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from prelude.cuda import kept_choices

FOLDER = Path(__file__).parent / "kernels"
BUILT = FOLDER / "cubins"
Compile: TypeAlias = "Callable[[str, Iterable[str], str], bytes]"
_COMMON = "common.cuh"


class CompileError(RuntimeError):
    """A kernel that the compiler refused."""


@cache
def source(name: str) -> str:
    """Return the whole text of a kernel file, the shared part in front."""
    return (FOLDER / _COMMON).read_text(encoding="utf-8") + (FOLDER / f"{name}.cu").read_text(encoding="utf-8")


def options(arch: str, *, float32: bool, head_dim: int) -> tuple[str, ...]:
    found = [f"--gpu-architecture={arch}", "--std=c++17", f"-DHEAD_DIM={head_dim}"]
    return (*found, "-DPRELUDE_FLOAT32") if float32 else tuple(found)


def nvrtc(text: str, flags: Iterable[str], name: str) -> bytes:
    """Compile ``text``. Needs libnvrtc, no driver."""
    from cuda.bindings import nvrtc as rtc  # type: ignore[import-untyped,unused-ignore]

    def checked(result: tuple[Any, ...], call: str) -> Any:
        if int(result[0]) != 0:
            raise CompileError(f"{name}: {call}: {result[0]}")
        return result[1] if len(result) > 1 else None

    program = checked(rtc.nvrtcCreateProgram(text.encode(), f"{name}.cu".encode(), 0, [], []), "nvrtcCreateProgram")
    encoded = [flag.encode() for flag in flags]
    try:
        code = rtc.nvrtcCompileProgram(program, len(encoded), encoded)[0]
        if int(code) != 0:
            log = b" " * int(checked(rtc.nvrtcGetProgramLogSize(program), "log"))
            rtc.nvrtcGetProgramLog(program, log)
            raise CompileError(f"{name}.cu: {log.decode(errors='replace').strip(chr(0)).strip()}")
        cubin: bytes = b" " * int(checked(rtc.nvrtcGetCUBINSize(program), "size"))
        checked(rtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return cubin
    finally:
        rtc.nvrtcDestroyProgram(program)


def cubin(
    name: str,
    flags: tuple[str, ...],
    *,
    version: str,
    folder: Path | None = None,
    compile_: Compile = nvrtc,
) -> bytes:
    """Return the cubin of ``kernels/name.cu``, compiled once per content, flags and compiler ``version``."""
    text = source(name)
    path = (folder or kept_choices.folder()) / _file(name, text, flags, version)
    for place in (BUILT / _file(name, text, flags, version.split(".")[0]), path):
        with contextlib.suppress(OSError):
            return place.read_bytes()
    made = compile_(text, flags, name)
    kept_choices.write(path, made)
    return made


def _file(name: str, text: str, flags: tuple[str, ...], version: str) -> str:
    return f"{name}-{hashlib.sha256(chr(0).join((text, *flags, version)).encode()).hexdigest()[:32]}.cubin"


def build(arch: str, head_dims: Iterable[int], version: str, compile_: Compile = nvrtc) -> list[Path]:
    """Return the cubins of every kernel that serves bfloat16 and these heads, in the package."""
    made = []
    for head_dim in head_dims:
        flags = options(arch, float32=False, head_dim=head_dim)
        for name in sorted(path.stem for path in FOLDER.glob("*.cu")):
            path = BUILT / _file(name, source(name), flags, version.split(".")[0])
            kept_choices.write(path, compile_(source(name), flags, name))
            made.append(path)
    return made


def nvrtc_version() -> str:
    from cuda.bindings import nvrtc as rtc  # type: ignore[import-untyped,unused-ignore]

    _, major, minor = rtc.nvrtcVersion()
    return f"nvrtc {major}.{minor}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compiles the kernels into the package.")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    chosen = parser.parse_args()
    for path in build(chosen.arch, chosen.head_dim, nvrtc_version()):
        print(path)
