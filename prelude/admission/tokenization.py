"""The tokenizer as admission uses it: counted, timed, and with a boundary between trusted and untrusted text.

Text comes in *pieces*, ``(text, trusted)``. Control tokens such as ``<|im_start|>`` are recognised only inside
trusted pieces (templates); in untrusted ones (the texts of users) the same characters are ordinary text. The rule for
runs that are encoded together:

    trusted pieces are cut at their control tokens; everything between two control tokens, trusted or not, is joined
    and encoded as one run

so a boundary of trust alone never changes a token: the ids are those of the whole string with control tokens
recognised in the trusted spans only. Two things are left to each run or piece: tokenizers that mark the beginning of
a text (``prepend_scheme="first"`` of Metaspace) mark the beginning of every run, and control tokens that swallow the
white space beside them do so within their own piece.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prelude._native.core import ids_below
from prelude.errors import InvalidRequest, RequestTooLarge, shown
from prelude.readouts.batch import I32
from prelude.values.memo import Memo, RequestMemo

if TYPE_CHECKING:
    from prelude.tokenizer import Tokenizer

Piece: TypeAlias = tuple[str | I32, bool]  # text or ready ids; trusted?
Atoms: TypeAlias = tuple[str | I32, ...]  # text and control ids in turn
Mask: TypeAlias = npt.NDArray[np.bool_]
TEXT_BYTES = 512  # of a text that is kept, beside its characters and ids


class Encoder:
    """One tokenizer for all requests. Thread-safe; ``calls`` counts the tokenizer's encode calls. ``kept``: the parts
    of prompts that many requests share, of at most ``kept_bytes``; each is found by requests of one salt."""

    def __init__(self, tokenizer: Tokenizer, vocab_rows: int, kept_bytes: int) -> None:
        self.tokenizer = tokenizer
        self.calls: Counter[int] = Counter()  # by thread: each adds to its own, so that none is lost
        self.kept: Memo[Any, Any] = Memo(kept_bytes)
        self.vocab_rows = vocab_rows
        self.tokenizer_ids = self._known_ids()
        self.id_limit = min(vocab_rows, self.tokenizer_ids)
        self.may_pass_rows = tokenizer.id_limit > vocab_rows
        scope = TokenizationScope(self)
        self.prefix, self.suffix = scope.specials()

    def _known_ids(self) -> int:
        """One more than the largest id with a token, as far as the model has rows."""
        end = min(self.tokenizer.id_limit, max(self.tokenizer.get_vocab_size(), self.vocab_rows))
        for token_id in range(end - 1, -1, -1):
            if self.tokenizer.id_to_token(token_id) is not None:
                return token_id + 1
        return 0

    def atoms(self, scope: TokenizationScope, text: str) -> Atoms:
        """Trusted text cut at its control tokens."""
        found: Atoms = self._shared(scope, "atoms", text, lambda: tuple(self._cut(scope, text)))
        return found

    def fixed(self, scope: TokenizationScope, text: str) -> I32:
        """Return the ids of a run that is template text throughout, and so the same for every request."""
        found: I32 = self._shared(scope, "fixed", text, lambda: scope.encode(text))
        return found

    def _shared(self, scope: TokenizationScope, kind: str, text: str, make: Callable[[], Any]) -> Any:
        """The engine's own text is shared by all requests, text that a task brings by those of its salt."""
        kept, reader = (scope.kept, scope.salt) if scope.brings_text else (self.kept, None)
        found = kept.get_for((kind, text), reader)
        if found is None:
            found = kept.put_for((kind, text), reader, make(), TEXT_BYTES + 8 * len(text))
        return found

    def _cut(self, scope: TokenizationScope, text: str) -> list[str | I32]:
        if not text or np.array_equal(scope.encode(text, parse_special=True), scope.encode(text)):
            return [text]
        ids, offsets = scope.encode_with_offsets(text, parse_special=True)
        parts: list[str | I32] = []
        last = 0
        for token_id, (start, end) in zip(ids.tolist(), offsets.tolist()):
            surface = text[start:end]
            if self.tokenizer.id_to_token(token_id) != surface.strip() or end <= last:
                continue
            if scope.encode(surface).tolist() == [token_id]:
                continue  # an ordinary token
            parts += [text[last:start], np.array([token_id], dtype=np.int32)]
            last = end
        parts.append(text[last:])
        return [part for part in parts if len(part)]


class TokenizationScope:
    """One request's use of the tokenizer: its calls and their seconds. ``kept``: the parts of prompts that it shares
    with the requests of its salt, or with none: then its own questions share them."""

    __slots__ = ("alone", "brings_text", "calls", "encoder", "kept", "salt", "seconds")

    def __init__(self, encoder: Encoder, default_cache: str = "auto", task: Any = None) -> None:
        """``task`` says whose text it is: with a ``salt`` or ``cache="never"``, ids of trusted text of a template or
        recipe that the task brings (``brings_text``) are not shared, since the time of a call would show the texts of
        others; the engine's own is shared."""
        self.encoder = encoder
        self.calls, self.seconds = 0, 0.0
        salt, cache = getattr(task, "salt", None), getattr(task, "cache", None)  # not checked so far: any objects
        self.salt = salt if isinstance(salt, str) else None
        if not isinstance(cache, str) or cache == "auto":
            cache = default_cache
        self.alone = cache == "never"  # nothing is kept behind the request, for this tenant either
        self.kept: Memo[Any, Any] | RequestMemo = RequestMemo() if self.alone else encoder.kept
        brought = getattr(task, "template", None) is not None or getattr(task, "recipe", None) is not None
        self.brings_text = brought and (self.salt is not None or self.alone)

    def encode(self, text: str, *, special: bool = False, parse_special: bool = False) -> I32:
        """``int32[n]``; the text was checked before."""
        encode = self.encoder.tokenizer.encode_array
        ids: I32 = self._timed(text, encode, text, special, parse_special=parse_special)
        self._check(ids)
        return ids

    def encode_with_offsets(
        self, text: str, *, special: bool = False, parse_special: bool = False
    ) -> tuple[I32, I32]:
        """``int32[n]`` and code point offsets ``int32[n, 2]``."""
        encode = self.encoder.tokenizer.encode_with_offsets
        ids, offsets = self._timed(text, encode, text, special, parse_special=parse_special)
        self._check(ids)
        return ids, offsets

    def encode_pair(self, first: str, second: str) -> tuple[I32, I32, I32]:
        """Two texts with the tokenizer's special tokens: ids, token types, and for each token the text that it is of,
        0 or 1, or -1 for a special token of the post-processor. All int32[n]."""
        found = self._timed(f"{first} … {second}", self.encoder.tokenizer.encode, first, second)
        ids = np.array(found.ids, dtype=np.int32)
        self._check(ids)
        texts = [-1 if text is None else text for text in found.sequence_ids]
        return ids, np.array(found.type_ids, dtype=np.int32), np.array(texts, dtype=np.int32)

    def _timed(self, text: str, encode: Callable[..., Any], *given: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            found = encode(*given, **options)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"the tokenizer refuses {shown(text)}: {shown(str(error))}", field=None) from error
        self.seconds += time.perf_counter() - started
        self.calls += 1
        return found

    def runs(self, pieces: Sequence[Piece], fixed: tuple[str, ...] = ()) -> list[I32 | list[tuple[str, bool]]]:
        """Ready ids, and the stretches of ``(text, cuttable)`` that are encoded together. Untrusted text is cuttable,
        but for pieces that are ``fixed``."""
        runs: list[I32 | list[tuple[str, bool]]] = []
        for content, trusted in pieces:
            if len(content) == 0:
                continue
            atoms: Atoms = (content,)
            if trusted and isinstance(content, str):
                atoms = self.encoder.atoms(self, content)
            for atom in atoms:
                if not isinstance(atom, str):
                    runs.append(atom)
                elif runs and isinstance(runs[-1], list):
                    runs[-1].append((atom, not trusted and atom not in fixed))
                else:
                    runs.append([(atom, not trusted and atom not in fixed)])
        return runs

    def encode_pieces(self, pieces: Sequence[Piece]) -> I32:
        """``int32[n]`` by the rule at the top of this module."""
        parts = []
        for run in self.runs(pieces):
            if not isinstance(run, list):
                parts.append(run)
                continue
            text = run[0][0] if len(run) == 1 else "".join(text for text, _ in run)
            mine = any(cuttable for _, cuttable in run)
            parts.append(self.encode(text) if mine else self.encoder.fixed(self, text))
        return parts[0] if len(parts) == 1 else np.concatenate([EMPTY, *parts])

    def encode_cuttable(self, pieces: Sequence[Piece], fixed: tuple[str, ...] = ()) -> tuple[I32, Mask]:
        """The same ids, and which of them stand for untrusted text alone (these may be truncated), ``fixed`` left
        out."""
        given = {id(content) for content, trusted in pieces if not trusted and not isinstance(content, str)}
        ids: list[I32] = [EMPTY]
        masks: list[Mask] = [np.zeros(0, dtype=np.bool_)]
        for run in self.runs(pieces, fixed):
            if not isinstance(run, list):
                ids.append(run)
                masks.append(np.full(len(run), id(run) in given))
                continue
            found, offsets = self.encode_with_offsets("".join(text for text, _ in run))
            ends = offsets[:, 1]
            # Offsets may leave white space out that belongs to a token: take all since the token before.
            starts = np.minimum(offsets[:, 0], np.concatenate([EMPTY, [0], ends[:-1]])[: len(ends)])
            trusted = np.concatenate([np.full(len(text), not cuttable) for text, cuttable in run])
            before = np.concatenate([[0], np.cumsum(trusted)])
            ids.append(found)
            masks.append(before[ends] == before[starts])
        return np.concatenate(ids), np.concatenate(masks)

    def specials(self) -> tuple[I32, I32]:
        """Return the ids that the tokenizer puts before and after a text (BOS, EOS); either may be empty."""
        bare = self.encode("a").tolist()
        full = self.encode("a", special=True)
        for start in range(len(full)):
            if full[start : start + len(bare)].tolist() == bare:
                return full[:start], full[start + len(bare) :]
        return EMPTY, EMPTY

    def _check(self, ids: I32) -> None:
        encoder = self.encoder
        if encoder.may_pass_rows and len(ids) and int(ids.max()) >= encoder.vocab_rows:
            raise InvalidRequest(
                f"the tokenizer gives id {int(ids.max())} for this text and the model has {encoder.vocab_rows} rows: "
                "tokenizer and model do not belong together",
                field=None,
            )

    def close(self) -> float:
        """Report to the encoder; returns the milliseconds spent."""
        if self.calls:
            self.encoder.calls[get_ident()] += self.calls
            self.calls = 0
        return self.seconds * 1e3


EMPTY: I32 = np.zeros(0, dtype=np.int32)


def len_of(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim) else 0


def token_ids(value: Any, field: str, encoder: Encoder, most: int) -> I32:
    """Return ids given by the caller, as a copy ``int32[n]``.

    ==================================================  =============================================
    Python ints, numpy integer arrays and scalars       taken
    ids up to the smaller of tokenizer and logit rows    taken
    ids of rows that no token has (padding of the rows)  refused: the model never saw them
    ids of tokens that no row has                        refused
    negative, 2**31, 2**63                               refused
    bool, float (also 5.0), str, None, nested            refused
    ==================================================  =============================================
    """
    taken = ids_below(value, encoder.id_limit) if len_of(value) <= most else None
    if taken is not None:
        return taken
    if isinstance(value, np.ndarray) and value.ndim == 0:
        raise InvalidRequest(f"{shown(value)} is one number; give a list of token ids", field=field)
    if len(value) > most:
        raise RequestTooLarge(
            f"{len(value)} token ids; the limit is {most} (EngineConfig.max_prompt_chars)",
            field=field,
        )
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or not np.issubdtype(value.dtype, np.integer):
            raise InvalidRequest(
                f"an array of shape {value.shape} and dtype {value.dtype}; token ids are one-dimensional integers",
                field=field,
            )
        array = value.astype(np.int64)
    else:
        kinds = set(map(type, value))
        if not kinds <= {int} and (
            wrong := [kind for kind in kinds if not issubclass(kind, np.integer | int) or kind is bool]
        ):
            at = next(i for i, item in enumerate(value) if type(item) in wrong)
            raise InvalidRequest(f"{shown(value[at])} is not a token id (an integer)", field=f"{field}[{at}]")
        try:
            array = np.array(value, dtype=np.int64)
        except OverflowError:
            array = np.array([min(max(int(item), -1), 1 << 62) for item in value], dtype=np.int64)
    if len(array) and array.view(np.uint64).max() >= encoder.id_limit:  # negative ones are huge
        at = int(np.flatnonzero((array < 0) | (array >= encoder.id_limit))[0])
        raise InvalidRequest(
            f"{shown(int(value[at]))} is not a token id: the tokenizer knows ids below {encoder.tokenizer_ids}, the "
            f"model has {encoder.vocab_rows} rows; give 0 to {encoder.id_limit - 1}",
            field=f"{field}[{at}]",
        )
    return array.astype(np.int32)
