"""fasttoken: an exact, complete, inference-only drop-in for HuggingFace ``tokenizers``.

    from prelude.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_file("tokenizer.json")
    tokenizer.encode("Hello").ids

The names, arguments, defaults and results are those of ``tokenizers`` 0.2x. What is left out on purpose
(training, adding tokens, setting components after loading) raises an error that says what to do instead.
Importing this package imports neither ``tokenizers``, ``transformers`` nor ``jinja2``.
"""

from __future__ import annotations

from . import decoders, models, normalizers, pre_tokenizers, processors
from .added_token import AddedToken
from .components import PYTHON_COMPONENTS, LeftOut, Regex
from .decoders import DecodeStream
from .encoding import Encoding
from .errors import (
    BackendUnavailable,
    ChatTemplateError,
    LoneSurrogateError,
    TokenizerConfigWarning,
    TokenizerError,
    TokenizerFileError,
    TokenizersMutationError,
)
from .tiktoken_encoding import TiktokenEncoding
from .tokenizer import Tokenizer
from .transformers_patch import patch_transformers, patched_transformers

trainers = LeftOut("trainers", "training is left out: train with `tokenizers`, save, and load the file here")
NormalizedString = LeftOut("NormalizedString", PYTHON_COMPONENTS)
PreTokenizedString = LeftOut("PreTokenizedString", PYTHON_COMPONENTS)

__all__ = [
    "AddedToken",
    "BackendUnavailable",
    "ChatTemplateError",
    "DecodeStream",
    "Encoding",
    "LoneSurrogateError",
    "NormalizedString",
    "PreTokenizedString",
    "Regex",
    "TiktokenEncoding",
    "Tokenizer",
    "TokenizerConfigWarning",
    "TokenizerError",
    "TokenizerFileError",
    "TokenizersMutationError",
    "decoders",
    "models",
    "normalizers",
    "patch_transformers",
    "patched_transformers",
    "pre_tokenizers",
    "processors",
    "trainers",
]
