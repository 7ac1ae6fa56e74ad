"""Pre-tokenizers: views of a loaded tokenizer's, or made by themselves to be called."""

from __future__ import annotations

from .components import PreTokenizer as PreTokenizer
from .components import component_type

BertPreTokenizer = component_type("pre_tokenizer", "BertPreTokenizer")
ByteLevel = component_type("pre_tokenizer", "ByteLevel")
CharDelimiterSplit = component_type("pre_tokenizer", "CharDelimiterSplit")
Digits = component_type("pre_tokenizer", "Digits")
FixedLength = component_type("pre_tokenizer", "FixedLength")
Metaspace = component_type("pre_tokenizer", "Metaspace")
Punctuation = component_type("pre_tokenizer", "Punctuation")
Sequence = component_type("pre_tokenizer", "Sequence")
Split = component_type("pre_tokenizer", "Split")
UnicodeScripts = component_type("pre_tokenizer", "UnicodeScripts")
Whitespace = component_type("pre_tokenizer", "Whitespace")
WhitespaceSplit = component_type("pre_tokenizer", "WhitespaceSplit")
