"""The first run on a GPU: every stage in a process of its own, results kept as they come, also where a later stage
fails.

    python -m bench gpu_first [--out FOLDER] [--seconds 520] [--only STAGE,STAGE] [--from FOLDER]
    python -m bench gpu_first --print-sources      the hash of the native sources, which a pack keeps beside its wheel

``--out`` is ``$OUT`` where that is set. In it come

    results.jsonl   one line for each result, written and flushed by the stage that has it; and the stages' own ends
    table.md        the results as tables, made anew behind every stage
    figures.json    the figures in the form of bench/results, made anew then too
    log.txt         the last lines of each stage's output
    cache.tgz       the algorithms that were searched for and the compiled kernels, for the next call

A stage that passes its limit is ended, with its children. One is not begun if less than half of its limit is left. A
second call leaves out the stages that ended well in ``--from``, or ``--out``, and begins with the cache of that call.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.command_line import command_line, options_parser
from bench.gpu.table import ended_well, figures_of, table

ROOT = Path(__file__).resolve().parents[2]
LIMITS: dict[str, float] = {
    "versions": 90,
    "flashinfer": 20,
    "correctness": 180,
    "oneshot": 90,
    "throughput": 110,
    "decode": 90,
    "questions": 80,
    "deterministic": 150,
    "ready": 90,
    "sanitize": 150,
    "tests": 180,
    "profile": 60,
}
"""Seconds of each stage, in the order in which they run. The first one reads torch from a cold disk."""
SOURCES = (".pyx", ".pxd", ".pxi", ".hpp", ".cpp", ".h")
GRACE = 5.0  # seconds between the signals to end and to kill
LEAST = 0.5  # of a stage's limit: with less time left it is not begun
KEPT_LINES = 400  # of each stage's output


@dataclass(slots=True)
class End:
    """How a stage ended: "done", "failed" (by its status, or without a result), "lost" (a signal), "out of time" or
    "not begun"."""

    stage: str
    how: str
    seconds: float = 0.0
    code: int | None = None


class FirstRun:
    def __init__(self, out: Path, seconds: float, runner: Sequence[str], *extra: str, limits: float = 1.0) -> None:
        """``runner``: the command of a stage, in front of its name. ``limits`` multiplies the stages' own."""
        self.out, self.runner, self.extra, self.limits = out, runner, extra, limits
        self.results = out / "results.jsonl"
        self.until = time.monotonic() + seconds
        self.ends: list[End] = []
        self.without: dict[str, str] = {}  # in the environment of the stages behind a FlashInfer that failed
        self.cache = Path(tempfile.mkdtemp(prefix="prelude-first-"))
        self.gpu: str | None = None  # its name, by the driver's own tool
        self.commit = ""
        out.mkdir(parents=True, exist_ok=True)

    def run(self, stages: Sequence[str]) -> None:
        try:
            self._append({"stage": "first", "key": "gpu", "value": self.gpu})
            if self.commit:
                self._append({"stage": "first", "key": "commit", "value": self.commit})
            self._keep()
            for name in stages:
                self.ends.append(end := self.stage(name))
                if name == "flashinfer" and end.how not in ("done", "not begun"):
                    self.without["PRELUDE_ATTENTION"] = "keys"
                self._tell(end)
                self._keep()
        finally:
            shutil.rmtree(self.cache, ignore_errors=True)

    def _keep(self) -> None:
        for keep in (self._keep_cache, self._write_table):
            with contextlib.suppress(Exception):  # a full disk costs this file, not the stages behind it
                keep()

    def stage(self, name: str) -> End:
        left = self.until - time.monotonic()
        if left < LEAST * LIMITS[name] * self.limits:
            return End(name, "not begun")
        print(f"== {name}", flush=True)
        began, before = time.monotonic(), len(read_results(self.results))
        command = [*self.runner, name, "--results", str(self.results), *self.extra]
        env = {**os.environ, **self.without, "PRELUDE_CACHE": str(self.cache), "PYTHONUNBUFFERED": "1"}
        with tempfile.TemporaryFile() as said:
            try:
                process = subprocess.Popen(
                    command, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT, env=env, start_new_session=True
                )
            except OSError as error:
                self._log(name, str(error).encode())
                return End(name, "failed")
            try:
                code: int | None = process.wait(min(LIMITS[name] * self.limits, left))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_group(process, GRACE * self.limits)
            said.seek(0)
            self._log(name, said.read())
        told = any(line["stage"] == name for line in read_results(self.results)[before:])
        how = "out of time" if code is None else "lost" if code < 0 else "done" if code == 0 and told else "failed"
        print(f"   {how} after {time.monotonic() - began:.0f} s", flush=True)
        return End(name, how, time.monotonic() - began, code)

    # ------------------------------------------------------------------ kept results

    def _tell(self, end: End) -> None:
        at, seconds = round(time.time(), 3), round(end.seconds, 1)
        self._append(asdict(end) | {"key": "end", "at": at, "seconds": seconds})

    def _append(self, line: dict[str, Any]) -> None:
        with open(self.results, "a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(line) + "\n")  # a lost process may have left a part of a line

    def _log(self, name: str, said: bytes) -> None:
        lines = said.decode("utf-8", "replace").splitlines()
        with contextlib.suppress(OSError), open(self.out / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"== {name}: the last {min(KEPT_LINES, len(lines))} of {len(lines)} lines\n")
            file.writelines(line + "\n" for line in lines[-KEPT_LINES:])

    def _keep_cache(self) -> None:
        found = sorted(path for path in (self.cache / "cuda").glob("*") if path.suffix in (".json", ".cubin"))
        if found:
            beside = self.out / "cache.tgz.new"
            with tarfile.open(beside, "w:gz") as packed:
                for path in found:
                    packed.add(path, path.name)
            beside.replace(self.out / "cache.tgz")

    def take(self, earlier: Path) -> set[str]:
        """The results and the cache of an earlier call; returns the stages that ended well there. Nothing is taken
        where that call ran on another GPU."""
        known = read_results(earlier / "results.jsonl")
        before = [line["value"] for line in known if line["key"] == "gpu" and line["value"]]
        if self.gpu is not None and before and before[-1] != self.gpu:
            print(f"the earlier results are of {before[-1]}, this is {self.gpu}: they are not taken", flush=True)
            if earlier == self.out:
                self.results.rename(self.out / f"results-{time.time_ns()}.jsonl")
            return set()
        if earlier != self.out:
            with open(self.results, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in known)
        folder = self.cache / "cuda"
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, tarfile.TarError), tarfile.open(earlier / "cache.tgz") as packed:
            for member in packed:
                source = packed.extractfile(member)
                if source is not None:
                    (folder / Path(member.name).name).write_bytes(source.read())
        return ended_well(known)

    def _write_table(self) -> None:
        results = read_results(self.results)
        (self.out / "table.md").write_text(table(results), encoding="utf-8")
        figures = {"title": "On a GPU", "command": command_line(), **figures_of(results)}
        figures["facts"] |= {"date": time.strftime("%Y-%m-%d"), "cpu": self.gpu, "cores": os.cpu_count()}
        (self.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def output(*command: str) -> str:
    """Of a program; empty if it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=ROOT).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def gpu_name() -> str | None:
    """Of the GPU that is there; None where the driver's tool does not say it."""
    said = output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return said[0].strip() if said else None


def sources_hash(root: Path = ROOT) -> str:
    """Of names and bytes of the native sources: a wheel's compiled modules belong to one."""
    found = hashlib.sha256()
    for folder in ("_native", "tokenizer"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCES:
                found.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
                found.update(path.read_bytes())
    return found.hexdigest()


def commit_here() -> str:
    """Of the checkout; empty if this folder is none."""
    return output("git", "rev-parse", "HEAD").strip()


def end_group(process: subprocess.Popen[Any], grace: float) -> None:
    """Ends the process and everything that it began."""
    for sign, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The whole lines. A line that a lost process wrote in part is left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and {"stage", "key"} <= set(value):
                    found.append(value)
    return found


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-first")))
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--began", type=float, default=time.time(), help="--seconds count from this time on")
    parser.add_argument("--only", default=None, help="these stages, also where they ended well before")
    parser.add_argument("--from", dest="earlier", type=Path, default=None)
    parser.add_argument("--commit", default="", help="of the pack; a checkout has to be at it")
    parser.add_argument("--sources", default="", help="the hash of the native sources that the wheel was built of")
    parser.add_argument("--print-sources", action="store_true", help="print that hash, and do nothing else")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runner", default="bench.gpu.stages", help="the module of the stages; tests name another")
    parser.add_argument("--limits", type=float, default=1.0, help="multiplies the limits of the stages")
    chosen = parser.parse_args()
    if chosen.print_sources:
        print(sources_hash())
        return 0
    if chosen.sources and chosen.sources != sources_hash():
        parser.error("the wheel was built of other native sources than those here: build the pack again")
    if chosen.commit and (here := commit_here()) and here != chosen.commit:
        parser.error(f"the pack is of commit {chosen.commit}, the checkout is at {here}")
    stages = [name for name in (chosen.only or ",".join(LIMITS)).split(",") if name]
    unknown = [name for name in stages if name not in LIMITS]
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}; there are {', '.join(LIMITS)}")
    left = chosen.seconds - max(0.0, time.time() - chosen.began)
    runner, repeats = (sys.executable, "-m", chosen.runner), ("--repeats", str(chosen.repeats))
    run = FirstRun(chosen.out.absolute(), left, runner, *repeats, limits=chosen.limits)
    run.gpu, run.commit = gpu_name(), chosen.commit or commit_here()
    earlier = chosen.earlier or (chosen.out if (chosen.out / "results.jsonl").exists() else None)
    if earlier is not None:
        done = run.take(earlier.absolute())
        if chosen.only is None:
            stages = [name for name in stages if name not in done]
    run.run(stages)
    print((run.out / "table.md").read_text(encoding="utf-8"))
    return 0 if all(end.how == "done" for end in run.ends) else 1


if __name__ == "__main__":
    # A call that is cut ends its stage, which would keep the GPU busy beside the next call.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
