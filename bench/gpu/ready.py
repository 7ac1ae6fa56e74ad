"""A process that loads the model of a folder and answers once: ``answered``, and the time of the answer.

    python -m bench gpu_ready FOLDER

``bench gpu_first`` starts it and takes the time from the start on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.command_line import options_parser
from prelude import Engine, EngineConfig, Generate, SamplingParams


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    engine = Engine.from_pretrained(folder, device="cuda", config=EngineConfig(max_length=4096))
    engine.run(Generate("where does the river begin", SamplingParams(max_tokens=1)))
    print(f"answered {time.time()}", flush=True)
    os._exit(0)  # taking the engine down is no part of the time, and may not fail what is measured


if __name__ == "__main__":
    main()
