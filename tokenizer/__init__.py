"""fasttoken: an exact, complete, inference-only drop-in for HuggingFace ``tokenizers``.

    from prelude.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_file("tokenizer.json")
    tokenizer.encode("Hello").ids

The names, arguments, defaults and results are those of ``tokenizers`` 0.2x. Training, adding tokens and setting
components after loading raise an error that names the way out. Importing this package imports neither ``tokenizers``,
``transformers`` nor ``jinja2``; ``NormalizedString`` and ``PreTokenizedString`` are HF's own classes, imported when
they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import decoders, implementations, models, normalizers, pre_tokenizers, processors, trainers
from ._core import Encoding
from .added_token import AddedToken
from .backends.reference import ReferenceCore
from .components import Regex
from .decoders import DecodeStream
from .errors import (
    BackendUnavailable,
    ChatTemplateError,
    LoneSurrogateError,
    TokenizerConfigWarning,
    TokenizerError,
    TokenizerFileError,
    TokenizersMutationError,
)
from .hf_types import (
    EncodeInput,
    InputSequence,
    OffsetReferential,
    Offsets,
    OffsetType,
    PreTokenizedEncodeInput,
    PreTokenizedInputSequence,
    SplitDelimiterBehavior,
    TextEncodeInput,
    TextInputSequence,
    Token,
)
from .implementations import (
    BertWordPieceTokenizer,
    ByteLevelBPETokenizer,
    CharBPETokenizer,
    SentencePieceBPETokenizer,
    SentencePieceUnigramTokenizer,
)
from .tiktoken_encoding import TiktokenEncoding
from .tokenizer import Tokenizer
from .transformers_patch import fast_tokenizer, patch_transformers, patched_transformers

if TYPE_CHECKING:
    from tokenizers import NormalizedString as NormalizedString
    from tokenizers import PreTokenizedString as PreTokenizedString
else:

    def __getattr__(name: str) -> Any:
        if name in ("NormalizedString", "PreTokenizedString"):
            return getattr(ReferenceCore.package(name), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["AddedToken", "BackendUnavailable", "BertWordPieceTokenizer", "ByteLevelBPETokenizer"]
__all__ += ["CharBPETokenizer", "ChatTemplateError", "DecodeStream", "EncodeInput", "Encoding", "InputSequence"]
__all__ += ["LoneSurrogateError", "OffsetReferential", "OffsetType", "Offsets", "PreTokenizedEncodeInput"]
__all__ += ["PreTokenizedInputSequence", "Regex", "SentencePieceBPETokenizer", "SentencePieceUnigramTokenizer"]
__all__ += ["SplitDelimiterBehavior", "TextEncodeInput", "TextInputSequence", "TiktokenEncoding", "Token"]
__all__ += ["Tokenizer", "TokenizerConfigWarning", "TokenizerError", "TokenizerFileError"]
__all__ += ["TokenizersMutationError", "decoders", "fast_tokenizer", "implementations", "models", "normalizers"]
__all__ += ["patch_transformers", "patched_transformers", "pre_tokenizers", "processors", "trainers"]
