"""The benchmarks by name.

python -m bench                      lists them
python -m bench NAME [OPTION ...]    runs one; ``--help`` has its options
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

# Names by folder; a module's name is that of its file.
COMMANDS = {
    "engine": "engine.decisions",
    "prefixes": "engine.prefixes",
    "allowed_tokens": "engine.allowed_tokens",
    "bulk": "engine.bulk",
    "shares": "engine.shares",
    "fidelity": "engine.fidelity",
    "fit": "engine.fit",
    "fleet": "fleet.ray_fleet",
    "tensor_parallel": "engine.tensor_parallel",
    "memory": "engine.memory",
    "cpu_matmul": "engine.cpu_matmul",
    "cpu_models": "engine.cpu_models",
    "calibration": "engine.calibration",
    "label_lengths": "engine.label_lengths",
    "simulator": "engine.simulator",
    "host_path": "host.path",
    "typed_decisions": "host.typed_decisions",
    "clients": "host.clients",
    "instructions": "host.instructions",
    "tables": "tables",
    "serving": "serving.service",
    "gpu_first": "gpu.first",
    "gpu_host": "gpu.host",
    "gpu_stage": "gpu.stages",
    "gpu_ready": "gpu.ready",
    "tokenizer": "tokenizer.encode",
    "tokenizer_load": "tokenizer.loading",
    "tokenizer_native": "tokenizer.native",
    "tokenizer_hostile": "tokenizer.hostile",
    "tokenizer_texts": "tokenizer.texts",
}


def summary(module: str) -> str:
    """The first sentence of a module's docstring. The module is not imported: some need torch or a GPU."""
    text = (FOLDER / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(text)) or ""
    return " ".join(doc.split("\n\n")[0].split()).split(". ")[0].rstrip(".:")


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print((__doc__ or "").strip(), end="\n\n")
        for name, module in COMMANDS.items():
            print(f"  {name:20} {summary(module)}")
        return
    name, *rest = arguments
    if name not in COMMANDS:
        sys.exit(f"bench: there is no {name!r}; python -m bench lists the names")
    sys.argv = [f"bench {name}", *rest]
    runpy.run_module(f"bench.{COMMANDS[name]}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
