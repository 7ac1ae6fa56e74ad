"""The facts of a run in its result file: commit, machine, both sides' versions and builds, the files that it read.

``write`` puts these facts into the file of every benchmark. ``stale`` says why a kept file is of other code than the
code at hand. Only the standard library is imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.command_line import command_line

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ("prelude", "tokenizer", "_native", "cuda")  # the folders whose code a figure is of
MANY = 30  # commits to those folders after which a figure is of other code

VECTORS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")
PACKAGES = ("numpy", "torch", "transformers", "sentence-transformers")
NATIVE_PEERS = ("onnxruntime", "xllamacpp", "llama-cpp-python", "tokenizers", "fastokens", "gigatoken", "tiktoken")
MODULES = {"llama-cpp-python": "llama_cpp"}
INSTRUCTIONS = {
    "AVX2": b"%ymm",
    "AVX-512": b"%zmm",
    "VNNI": b"vpdpbusd",
    "AVX-512 BF16": b"vdpbf16ps",
    "AMX int8": b"tdpbssd",
    "AMX bfloat16": b"tdpbf16ps",
    "dot product": b"\tsdot\t",
}


def _load() -> float:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0


LOAD_AT_START = _load()


def _git(*words: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None


def commit() -> str:
    """The commit that is checked out, with ``+`` if tracked files differ from it; empty outside a repository."""
    done = _git("describe", "--always", "--exclude=*", "--dirty=+")
    return done.stdout.strip() if done else ""


def _cpu_info(key: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def machine_facts(extra: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Hardware and versions of a run, without names of hosts or paths."""
    model = _cpu_info("model name") or platform.processor() or platform.machine()
    if family := _cpu_info("cpu family"):
        number = _cpu_info("model\t")
        model += f" (family {family}, model {number})"
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), **dict(extra)}


def _versions(names: Sequence[str]) -> dict[str, str]:
    loaded = (name for name in names if MODULES.get(name, name.replace("-", "_")) in sys.modules)
    return {name: importlib.metadata.version(name) for name in loaded}


def _instruction_sets(library: Path) -> set[str]:
    """Those that the disassembled machine code holds."""
    with subprocess.Popen(
        ["objdump", "-d", "--no-show-raw-insn", str(library)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        found: set[str] = set()
        tail = b""
        while part := process.stdout.read(1 << 20):
            text = tail + part
            found |= {name for name, word in INSTRUCTIONS.items() if word in text}
            tail = text[-32:]
    return found


def build_of(package: str) -> str:
    """The instruction sets in a package's native libraries, from their machine code."""
    files = importlib.metadata.files(package) or []
    libraries = [Path(str(file.locate())) for file in files if re.search(r"\.so(\.|$)", file.name)]
    try:
        found = set().union(*map(_instruction_sets, libraries))
    except FileNotFoundError:
        return "unknown: objdump is not installed"
    return ", ".join(name for name in INSTRUCTIONS if name in found) or "none of " + ", ".join(INSTRUCTIONS)


def _kernels() -> dict[str, str]:
    """Of our products on this processor, by the type of the weights, if the run has any."""
    found = sys.modules.get("prelude._native.cpu")
    return {} if found is None else dict(found.PACKED_KERNELS)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode())
            with file.open("rb") as opened:
                while part := opened.read(1 << 20):
                    digest.update(part)
    return digest.hexdigest()[:16]


def _read_files(arguments: Sequence[str]) -> Iterator[Path]:
    """The files and folders that the command names, without those that it writes."""
    for before, word in zip(("", *arguments), arguments):
        name = word.partition("=")[2] if word.startswith("--") else word
        if name and not re.match("--(json|plot|out|made)", before + word) and Path(name).exists():
            yield Path(name)


def facts() -> dict[str, Any]:
    """Of a run that ends now."""
    flags = set(_cpu_info("flags").split()) | set(_cpu_info("Features").split())
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        **machine_facts(),
        "processors": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "vectors": [name for name in VECTORS if name in flags],
        "load": [LOAD_AT_START, _load()],
        "versions": _versions(PACKAGES) | (peers := _versions(NATIVE_PEERS)),
        "builds": {name: build_of(name) for name in peers},
        "kernels": _kernels(),
        "files": {path.name: _digest(path) for path in _read_files(sys.argv[1:])},
    }


def write(path: str | Path, value: Mapping[str, Any]) -> None:
    """``value`` as a result file, with the command and the facts of this run."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    told = {"command": command_line(), **value, "facts": facts() | value.get("facts", {})}
    target.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def stale(told: Mapping[str, Any]) -> str:
    """Why the figures of a file with these facts are not of the code at hand; empty if they are."""
    of = told.get("commit") or ""
    if not isinstance(of, str):
        return "parts of several commits"
    if not of:
        return "no commit"
    ancestor = _git("merge-base", "--is-ancestor", of.rstrip("+"), "HEAD")
    if ancestor is None or ancestor.returncode:
        return "a commit that is not in the history"
    if of.endswith("+"):
        return "a tree with changes"
    since = _git("rev-list", "--count", f"{of}..HEAD", "--", *MEASURED)
    return "older code" if since is None or int(since.stdout or MANY + 1) > MANY else ""
