"""The training of the packaged model and its held-out sentences; see ``prelude/default_model/README.md``."""

from pathlib import Path

DATA = Path(__file__).parent  # of heldout.jsonl, selection.jsonl and development.jsonl
