"""Instructions of the native core's operations, counted by callgrind and compared with the numbers kept.

    python -m bench instructions             count, and print the difference to bench/results/instructions.json
    python -m bench instructions --write     keep the counts
    python -m bench instructions allocate_evict_free insert        these operations only
    python -m bench instructions --cache     also lines missed in a simulated 1 MiB last-level cache (slower)

Counts are per request (512 tokens in 32 blocks; a row of 128 tokens for packing), over 64 requests a repeat. They
do not depend on other load of the machine, so a difference is the code's or the compiler's; a kept file names the
compiler it was counted with. Needs cmake, a C++20 compiler and valgrind. Exits with 1 when something costs more
than ``--tolerance`` percent more than kept.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import record
from bench.command_line import options_parser

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "bench" / "results" / "instructions.json"
ROWS, REPEATS = 64, 4
POOLS = (1 << 12, 1 << 16)
CACHE = ("--cache-sim=yes", "--D1=32768,8,64", "--I1=32768,8,64", "--LL=1048576,8,64")


@dataclass(frozen=True)
class Count:
    instructions: float
    missed: float | None  # lines, read or written, that were not in the last-level cache


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        sys.exit(f"bench instructions: {name} is not installed")
    return found


def build(folder: Path) -> tuple[Path, str]:
    """The driver, and the compiler it was built with."""
    cmake = tool("cmake")
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", str(folder), "--target", "operations"], check=True, stdout=subprocess.DEVNULL)
    cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache, re.M)
    version = "unknown"
    if compiler is not None:
        said = subprocess.run([compiler[1], "--version"], check=True, capture_output=True, text=True).stdout
        version = said.splitlines()[0]
    return folder / "operations", version


def count(driver: Path, operation: str, blocks: int, cache: bool) -> Count:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = [tool("valgrind"), "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=measured"]
        command += [f"--callgrind-out-file={out}", *(CACHE if cache else ())]
        done = subprocess.run(
            [*command, str(driver), operation, str(blocks), str(REPEATS)], capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"bench instructions: {operation} failed:\n{done.stderr}")
        text = out.read_text(encoding="utf-8")
    events = re.search(r"^events: (.+)$", text, re.M)
    totals = re.search(r"^(?:summary|totals): (.+)$", text, re.M)
    if events is None or totals is None:
        sys.exit(f"bench instructions: callgrind wrote no totals for {operation}")
    by_name = dict.fromkeys(events[1].split(), 0)
    by_name.update(zip(by_name, map(int, totals[1].split())))  # zeroes at the end are left out
    per = ROWS * REPEATS
    missed = (by_name["DLmr"] + by_name["DLmw"]) / per if cache else None
    return Count(by_name["Ir"] / per, missed)


def read_kept(compiler: str) -> tuple[dict[str, float], str]:
    """The kept counts and the compiler they were taken with; ``compiler`` where nothing is kept."""
    if not KEPT.exists():
        return {}, compiler
    value = json.loads(KEPT.read_text(encoding="utf-8"))
    return value["instructions"], value["compiler"]


def compare(name: str, now: Count, kept: dict[str, float]) -> tuple[str, float]:
    """A line, and by how many percent it costs more than the kept count."""
    before = kept.get(name)
    more = 0.0 if before is None else (now.instructions / before - 1) * 100
    line = f"{name:<32} {now.instructions:9.1f}"
    line += "        new" if before is None else f"  {before:9.1f} kept  {more:+7.2f} %"
    return line + ("" if now.missed is None else f"  {now.missed:7.1f} lines missed"), more


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("operations", nargs="*", help="names, all of them without any")
    parser.add_argument("--write", action="store_true", help="keep the counts")
    parser.add_argument("--cache", action="store_true", help="simulate a cache too")
    parser.add_argument("--tolerance", type=float, default=3.0, help="percent that an operation may cost more")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "instructions", help="where to build")
    options = parser.parse_args()
    driver, compiler = build(options.build)
    listed = subprocess.run([str(driver), "--list"], check=True, capture_output=True, text=True).stdout.split()
    if unknown := [name for name in options.operations if name not in listed]:
        sys.exit(f"bench instructions: no operation {', '.join(unknown)}; there are {', '.join(listed)}")
    kept, kept_with = read_kept(compiler)
    if kept_with != compiler:
        print(f"kept with {kept_with}, counted with {compiler}: differences are the compilers' too")
    counted: dict[str, float] = {}
    worse = []
    for operation in options.operations or listed:
        for blocks in POOLS:
            name = f"{operation} {blocks}"
            now = count(driver, operation, blocks, options.cache)
            counted[name] = round(now.instructions, 1)
            line, more = compare(name, now, kept)
            print(line, flush=True)
            if more > options.tolerance:
                worse.append(name)
    if options.write:
        together = {**(kept if options.operations else {}), **counted}
        record.write(KEPT, {"compiler": compiler, "instructions": together})
    elif worse:
        sys.exit(f"more than {options.tolerance:g} % dearer than kept: {', '.join(worse)}")


if __name__ == "__main__":
    main()
