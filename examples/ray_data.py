"""Score a table on a pool of Ray's actors: a Parquet, CSV or JSON-lines dataset in, Parquet files out.

    python examples/ray_data.py tickets.csv scored/ --text body --choice topic=billing,delivery,other --replicas 2

An engine runs in each actor. A row that cannot be served has its problem in the column "error". An actor that dies
is replaced, and its rows are computed again.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray

from prelude.ray import score

READERS = {".parquet": "read_parquet", ".csv": "read_csv", ".jsonl": "read_json"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output", help="a folder")
    parser.add_argument("--text", required=True, help="the column that is judged")
    parser.add_argument("--choice", required=True, metavar="NAME=LABEL,LABEL,...")
    parser.add_argument("--rubric", default="Judge only what is written.")
    parser.add_argument("--model", default=None)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--cpus", type=int, default=None, help="CPUs that Ray counts with; by default the machine's")
    chosen = parser.parse_args()
    name, _, labels = chosen.choice.partition("=")
    form: dict[str, Any] = {
        "state": "{rubric}\n\n{" + chosen.text + "}",
        "constants": {"rubric": chosen.rubric},
        "questions": {name: {"question": f"{name}?", "labels": labels.split(",")}},
    }
    # Reading and writing take a CPU beside those of the replicas.
    needed = chosen.replicas * chosen.threads + 2
    ray.init(num_cpus=chosen.cpus or needed, include_dashboard=False, log_to_driver=False)
    reader = next(read for ending, read in READERS.items() if chosen.input.endswith(ending))
    dataset = getattr(ray.data, reader)(chosen.input)
    scored = score(dataset, form, chosen.model, replicas=chosen.replicas, threads=chosen.threads)
    scored.write_parquet(chosen.output)
    ray.shutdown()


if __name__ == "__main__":
    main()
