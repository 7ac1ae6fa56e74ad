"""An installed wheel without torch, in any folder: python tests/installed.py"""

from prelude.tokenizer import Tokenizer

import prelude
from prelude.default_model import path

encoding = Tokenizer.from_file(str(path() / "tokenizer.json")).encode("The harbour was quiet.")
if not encoding.ids or len(encoding.ids) != len(encoding.offsets):
    raise SystemExit(f"prelude {prelude.__version__}: {encoding.ids} with offsets {encoding.offsets}")
print("prelude", prelude.__version__, encoding.ids)
