"""The tokenizer's own wheel, in any folder: python tests/installed_tokenizer.py TOKENIZER_JSON"""

import importlib.util
import sys

from prelude.tokenizer import Tokenizer

for absent in ("prelude.api.engine", "prelude.default_model", "prelude.simulation"):
    if importlib.util.find_spec(absent) is not None:
        raise SystemExit(f"{absent} is installed: this is not the tokenizer's own wheel")
encoding = Tokenizer.from_file(sys.argv[1]).encode("The harbour was quiet.")
if not encoding.ids or len(encoding.ids) != len(encoding.offsets):
    raise SystemExit(f"{encoding.ids} with offsets {encoding.offsets}")
print("prelude.tokenizer", encoding.ids)
