"""The native core of prelude.tokenizer: one loaded tokenizer file, immutable, for any number of threads.

Text arguments are ``str`` or UTF-8 ``bytes``. One policy on every path for text that is not Unicode: a
``str`` that holds a lone surrogate raises ``LoneSurrogateError``, which is a ``UnicodeEncodeError`` and a
``TypeError`` (HF's); ``bytes`` that are not valid UTF-8 raise ``UnicodeDecodeError``. Nothing is replaced
silently. A value that is not text: ``TypeError``.

Arrays returned belong to the caller. Token ids are int32, offsets int32 pairs, word numbers int32: every
piece of the text and every added token in it has the next number, as in HF.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .encode.post_processing import Frame, Layout
from .encode.sequences import RowSource
from .encoding import EncodingMethods
from .errors import LoneSurrogateError as LoneSurrogateError
from .errors import TokenizerError
from .errors import TokenizerFileError as TokenizerFileError
from .params import Padding, Truncation

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Text = str | bytes
Offsets = Literal["char", "byte"]

class UnsupportedFeature(TokenizerError):
    """The file may be fine, but the core does not do ``feature``, found at ``path``: use another backend."""

    feature: str
    path: str
    def __init__(self, feature: str, path: str) -> None: ...

class TablesError(ValueError):
    """A file of tables was changed after it was written, or was written with another key."""

def digest(data: bytes, key: bytes) -> bytes:
    """A digest of 16 bytes, as fast as memory is read. ``key``: 64 secret bytes; without them it is not possible
    to make two contents of one digest."""

def digest_file(file: int, key: bytes) -> bytes:
    """The same of an open file, from where it stands to its end."""

class CoreTokenizer:
    @staticmethod
    def from_json(data: bytes) -> CoreTokenizer:
        """Load a tokenizer.json."""

    @staticmethod
    def from_tables(file: int, size: int, key: bytes, source: bytes) -> CoreTokenizer:
        """Loads the file that ``tables`` made, open and of ``size`` bytes; TablesError if it is another file."""

    def tables(self, key: bytes, source: bytes) -> bytes:
        """The loaded tables as a file, for this build, ``key`` and a tokenizer.json of the digest ``source``."""

    @property
    def table_bytes(self) -> int:
        """The memory of the tables."""

    @property
    def cache_bytes(self) -> int:
        """The bound of the caches of words, whose memory is reserved as a whole and given by the page, and of the
        strs that are kept for ids."""

    # ---- encoding; no special tokens are added here, that is the post-processor's work
    # parse_special=False treats the text of special tokens as ordinary text.
    def encode_array(self, text: Text, parse_special: bool = True) -> Int32: ...
    def last_cut(self, text: str) -> tuple[int, int]:
        """Return (end, next) in characters: whatever is written behind the text, the ids of its first ``end`` are the
        first of the whole, and the others those of what begins at ``next``. (0, 0): such a place is not known."""

    def count(self, text: Text, most: int = ...) -> tuple[int, int, int, int, int]:
        """Return (ids, before, begin, fits, end), the last three in characters. ids: their number, if it is at most
        ``most``; else a number past it, which the first ``end`` characters have. The first ``fits`` have at most
        ``most``; and more than those, ``before`` more ids than the characters from ``begin`` on alone."""

    def encode_full(
        self,
        text: Text,
        parse_special: bool = True,
        offsets: Offsets = "char",
        trim: bool = True,
    ) -> tuple[Int32, Int32, Int32]:
        """(ids [n], offsets [n, 2], word numbers [n]).

        ``trim`` applies the offset trimming of the file's post-processor (ByteLevel or Roberta with
        trim_offsets) as if this were the whole encoding.
        """

    def encode_tokens(self, text: Text, parse_special: bool = True) -> list[str]:
        """The token strings as HF's Encoding.tokens has them: for an added token the text it stood for, with
        the white space it took along."""

    def normalize(self, text: Text) -> str:
        """The normalizer alone, over the whole text (added tokens are not looked for)."""

    def pre_tokenize(self, text: Text) -> list[tuple[str, tuple[int, int]]]:
        """The pre-tokenizer alone, on text as it stands: pieces with offsets in code points of ``text``."""

    # ---- vocabulary
    def token_to_id(self, token: str) -> int | None: ...
    def id_to_token(self, id: int) -> str | None: ...
    def token_bytes(self, id: int) -> bytes | None:
        """The bytes that the token adds to decoded text (byte-level and byte fallback undone)."""

    def tokens(self, ids: Sequence[int] | Int32) -> list[str | None]: ...
    @property
    def id_limit(self) -> int:
        """One more than the largest id of the vocabulary and the added tokens."""

    def vocab_size(self, with_added: bool = True) -> int: ...
    def get_vocab(self, with_added: bool = True) -> dict[str, int]: ...
    def added_tokens(self) -> list[tuple[int, str, bool, bool, bool, bool, bool]]:
        """By id: (id, content, single_word, lstrip, rstrip, normalized, special)."""

    def as_found(self) -> bytes:
        """By id: 1 if its token is not that of ``id_to_token`` in each text. An added token may take white space
        along, be found in normalized text, or have the id of another token; an unknown one of Unigram is shown as the
        text that it stands for. Empty: no id is marked."""

    def section(self, name: str) -> str | None:
        """The JSON text of a top-level member of the file as it stood, or None: ``post_processor``,
        ``truncation``, ``padding``, ``normalizer``, ``pre_tokenizer``, ``decoder``, ``added_tokens``,
        ``version``."""

    def unknown_id(self) -> int:
        """The id of the model's unknown token, or -1."""

    def model(self) -> dict[str, Any]:
        """The model in HF's layout (vocabulary by id, merges as pairs), rebuilt from the tables."""

    # ---- decoding
    def decode(self, ids: Sequence[int] | Int32, skip_special_tokens: bool = True) -> str: ...
    def decode_batch(self, rows: Iterable[Sequence[int] | Int32], skip_special_tokens: bool = True) -> list[str]: ...
    def decode_tokens(self, tokens: Sequence[str]) -> str:
        """The decoder alone over token strings (HF: ``decoder.decode(tokens)``)."""

class CoreStream:
    """The state of one streamed decoding; it belongs to one thread at a time.

    ``step`` gives the result of HF's DecodeStream.step: the new text, or None while a character is open.
    """

    def __init__(
        self,
        tokenizer: CoreTokenizer,
        ids: Sequence[int] | None = None,
        skip_special_tokens: bool = False,
    ) -> None: ...
    def step(self, id: int) -> str | None: ...
    def step_many(self, ids: Sequence[int]) -> str | None: ...
    def finish(self) -> str:
        """The text that is still held back, U+FFFD for each unfinished character; empty when there is none. The
        stream is then as new."""

    def copy(self) -> CoreStream: ...

class RowFrames:
    """The tokens that a post-processor puts around one sequence, and around two."""

    def __init__(
        self,
        core: CoreTokenizer,
        sequences: Any,
        single: Layout | None,
        pair: Layout | None,
        frame: Frame | None,
        added: tuple[int, int],
        trims_first: bool,
        special: bool,
    ) -> None:
        """added: how many tokens truncation leaves room for. trims_first: offsets are trimmed before anything is
        put around a sequence. special: asked for, if the post-processor has any."""

class StreamEntry:
    """The base of ``DecodeStream``: the calls that go straight to a native stream.

    A step of more than one small id over the tokenizer of the first step goes to ``_step_general``.
    """

    def _set_entry(self, owner: Any, native: Any) -> None: ...
    def step(self, tokenizer: Any, id: int | Sequence[int]) -> str | None: ...

def checked_text(text: Text) -> str:
    """The text as a str, without a lone surrogate."""

def id_list(ids: Sequence[int] | Int32) -> list[int]:
    """A row of ids, of any kind that ``decode`` takes, as a list."""

class FreshEncoding:
    """The base of ``Encoding``: the ids of one text; the other columns are made when one of them is first asked
    for."""

    _columns: Any
    @property
    def ids(self) -> list[int]: ...
    @property
    def tokens(self) -> list[str]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...
    @property
    def word_ids(self) -> list[int | None]: ...
    @property
    def attention_mask(self) -> list[int]: ...
    @property
    def type_ids(self) -> list[int]: ...
    @property
    def special_tokens_mask(self) -> list[int]: ...
    @property
    def sequence_ids(self) -> list[int | None]: ...
    def __len__(self) -> int: ...

Encoding = EncodingMethods  # a class of both

class EncodeEntry:
    """The base of ``Tokenizer``: the settings a call reads, and the calls that read nothing else.

    Calls of more than plain texts without truncation and padding go to ``_encode_general``, ``_batch_general``,
    ``_array_general`` and ``_offsets_general``, which the subclass has.
    """

    _truncation: Any
    _padding: Any
    _encode_special: bool
    def _set_entry(
        self,
        core: Any,
        plain: RowFrames | None,
        special: RowFrames | None,
        control: bytes,
    ) -> None: ...
    def _copy_entry(self, other: EncodeEntry) -> None: ...
    def _row_columns(
        self,
        firsts: list[Any],
        seconds: list[Any] | None,
        special: bool,
        truncation: Truncation | None,
        padding: Padding | None,
        parse_special: bool,
        columns: tuple[int, ...],
        kind: str,
        keeps_rest: bool,
    ) -> tuple[list[Any], list[int], int] | None:
        """(columns, the number of each row's sample, the length of the longest row) of texts or lists of words and
        their seconds; None where the general way has to be gone.

        columns: of 0 ids, 1 type ids, 2 attention mask, 3 special tokens mask, 4 offsets. kind: "int32" or "int64"
        for arrays [rows, length] (offsets [rows, length, 2]), of rows of one length alone; "list" for lists of lists.
        """

    def _row_encodings(self, source: RowSource, special: bool) -> list[Any] | None:
        """An encoding of each sample, cut and padded; their other columns are made of ``source``. None
        where the general way has to be gone."""

    def encode(
        self,
        sequence: Any,
        pair: Any | None = None,
        is_pretokenized: bool = False,
        add_special_tokens: bool = True,
    ) -> Encoding:
        """Encode one sequence, or a pair; each a string, or a list of strings with ``is_pretokenized``."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def encode_batch(
        self, input: Sequence[Any], is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> list[Encoding]:
        """Encode each input, then pad them together if padding is on."""

    def encode_batch_fast(
        self, input: Sequence[Any], is_pretokenized: bool = False, add_special_tokens: bool = True
    ) -> list[Encoding]:
        """``encode_batch`` for the ids: offsets are all (0, 0), words None, tokens empty, as in HF."""

    def encode_with_offsets(
        self,
        text: Text,
        add_special_tokens: bool = True,
        *,
        parse_special: bool = True,
    ) -> tuple[Int32, Int32]:
        """(ids int32[n], offsets int32[n, 2] in code points of ``text``)."""

    def encode_array(self, text: Text, add_special_tokens: bool = True, *, parse_special: bool = True) -> Int32:
        """The ids. With ``parse_special=False`` control tokens in ``text`` are ordinary text: no id of one
        comes out of it. Other added tokens are HF\'s; docs/TOKENIZER.md says which tokens are control tokens."""
