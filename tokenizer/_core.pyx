# distutils: language = c++
# distutils: define_macros = CYTHON_VECTORCALL_TPNEW=0
"""Thin wrapper of the C++ core; the interface and its promises are in _core.pyi."""

cimport cython
from cpython.bytes cimport PyBytes_AsStringAndSize, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport SIZE_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

import json
from operator import index

import numpy as np

cimport ndarray as cnp

cnp.import_ndarray()

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*)
    void PyErr_Clear()
    int PyUnicode_KIND(object)

cdef extern from *:
    """
    // Whether its UTF-8 would have to be made, and kept by it.
    static inline int lacks_utf8(PyObject* text) {
    #if PY_VERSION_HEX < 0x030E0000 && !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED)
      return PyUnicode_IS_READY(text) && ((PyCompactUnicodeObject*)text)->utf8 == NULL;
    #else
      return 0;
    #endif
    }
    """
    bint lacks_utf8(object)

include "_bridge.pxi"

# Below this many bytes a call keeps the GIL: getting it back costs more than the work.
cdef enum:
    RELEASE_AT = 8192
    QUICK_FROM = 256
    QUICK_TO = 65536
    MOST_TEXTS = 1 << 23  # bytes of the str objects that a tokenizer keeps for its ids


include "_views.pxi"
include "_ints.pxi"
include "_decode.pxi"


cdef const char* sized(bytes data, Py_ssize_t n) except NULL:
    if len(data) != n:
        raise ValueError(f"{n} bytes are expected, not {len(data)}")
    return data


def digest(data, bytes key):
    cdef string out = content_digest(view_of_bytes(data), sized(key, 64))
    return PyBytes_FromStringAndSize(out.data(), out.size())


def digest_file(int file, bytes key):
    cdef const char* raw = sized(key, 64)
    cdef string out
    with nogil:
        out = file_digest(file, raw)
    return PyBytes_FromStringAndSize(out.data(), out.size())


# The members of a model in HF's order, and what stands for one that a file does not have.
cdef dict _MODELS = {
    "BPE": {
        "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": None, "merges": None,
    },
    "WordPiece": dict.fromkeys(("unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab")),
    "WordLevel": dict.fromkeys(("vocab", "unk_token")),
    "Unigram": {"unk_id": None, "vocab": None, "byte_fallback": False},
}
cdef object _MAKING = object()  # CoreTokenizer's own constructors pass it: no object without a core is ever visible


@cython.final
cdef class CoreTokenizer:
    cdef Core* core
    cdef uint32_t _id_limit
    cdef list _texts  # of ids, as tokens; None: not made yet
    cdef Py_ssize_t _text_room  # bytes that further ones may take

    def __cinit__(self, making=None):
        if making is not _MAKING:
            raise TypeError("use CoreTokenizer.from_json")

    def __dealloc__(self):
        del self.core

    @staticmethod
    def from_json(data):
        cdef CoreTokenizer self = CoreTokenizer.__new__(CoreTokenizer, _MAKING)
        if isinstance(data, str):
            data = data.encode()
        self.core = new Core(view_of_bytes(data))
        return self.ready()

    @staticmethod
    def from_tables(int file, uint64_t size, bytes key, bytes source):
        cdef CoreTokenizer self = CoreTokenizer.__new__(CoreTokenizer, _MAKING)
        cdef const char* raw = sized(key, 64)
        cdef const char* of = sized(source, 16)
        with nogil:
            self.core = new Core(file, size, raw, of)
        return self.ready()

    cdef CoreTokenizer ready(self):
        self._id_limit = self.core.id_limit()
        share_ints_below(self._id_limit)
        self._texts, self._text_room = [], MOST_TEXTS
        return self

    def tables(self, bytes key, bytes source):
        cdef string out = self.core.tables(sized(key, 64), sized(source, 16))
        return PyBytes_FromStringAndSize(out.data(), out.size())

    @property
    def table_bytes(self):
        return self.core.table_bytes()

    @property
    def cache_bytes(self):
        return self.core.cache_bytes() + MOST_TEXTS

    def __reduce__(self):
        raise TypeError("a CoreTokenizer is not pickled: pickle the JSON it was loaded from")

    @cython.nonecheck(False)
    cdef inline int ids_into(self, object text, cbool special, CallIds& ids) except -1:
        """1 where the ids say where they lie."""
        cdef cbool ascii = isinstance(text, str) and PyUnicode_IS_COMPACT_ASCII(text)
        cdef string_view view
        cdef int known
        if ascii:
            view = string_view(<const char*> PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text))
        else:
            view = view_during(text, ids)
        if view.size() < RELEASE_AT:
            known = self.core.encode_ids(view, special, ids, ascii)
        else:
            with nogil:
                known = self.core.encode_ids(view, special, ids, ascii)
        return known

    def encode_array(self, text, bint parse_special=True):
        cdef CallIds ids
        self.ids_into(text, parse_special, ids)
        return int32_array(ids.data(), ids.size())

    def last_cut(self, text):
        cdef string_view view = view_of(text)
        cdef size_t end = 0, after = 0
        if view.size() < RELEASE_AT:
            self.core.last_cut(view, end, after)
        else:
            with nogil:
                self.core.last_cut(view, end, after)
        cdef size_t characters = characters_of(string_view(view.data(), end))
        return characters, characters + after - end

    def count(self, text, size_t most=SIZE_MAX):
        cdef string_view view = view_of(text)
        cdef CallIds ids
        cdef size_t[5] found
        cdef int i
        if view.size() < RELEASE_AT:
            self.core.count(view, most, ids, found)
        else:
            with nogil:
                self.core.count(view, most, ids, found)
        for i in range(2, 5):
            found[i] = characters_of(string_view(view.data(), found[i]))
        return found[0], found[1], found[2], found[3], found[4]

    cdef int full_into(self, object text, cbool special, object offsets, cbool trim, Encoded& out) except -1:
        if offsets not in ("char", "byte"):
            raise TokenizerError("offsets is 'char' or 'byte'")
        cdef string_view view = view_of(text)
        cdef cbool chars = offsets == "char"
        if view.size() < RELEASE_AT:
            self.core.encode(view, special, chars, trim, out)
        else:
            with nogil:
                self.core.encode(view, special, chars, trim, out)
        return 0

    def encode_full(self, text, bint parse_special=True, offsets="char", bint trim=True):
        cdef Encoded e
        self.full_into(text, parse_special, offsets, trim, e)
        return (
            int32_array(e.ids.data(), e.ids.size()),
            pair_array(e.offsets),
            int32_array(e.words.data(), e.words.size()),
        )

    cdef bint spans_into(self, const int32_t* ids, Py_ssize_t n, object text, Align* out) except -1:
        """The offsets of all ids of a text for which ids_into() gave 1; False where encode_full() has to say."""
        cdef string_view view
        if not isinstance(text, str):
            view = view_of(text)
            return self.core.char_spans(ids, n, characters_of(view), view, False, True, out)
        if PyUnicode_IS_COMPACT_ASCII(text):
            return self.core.char_spans(ids, n, PyUnicode_GET_LENGTH(text), view_of(text), True, True, out)
        return self.wide_spans_into(ids, n, text, out)

    cdef bint wide_spans_into(self, const int32_t* ids, Py_ssize_t n, object text, Align* out) except -1:
        cdef CallIds held
        cdef string_view view
        if self.core.spans_read_text():
            view = view_during(text, held)
        return self.core.char_spans(ids, n, PyUnicode_GET_LENGTH(text), view, False, True, out)

    def encode_tokens(self, text, bint parse_special=True):
        cdef Encoded e
        cdef Added added
        self.full_into(text, parse_special, "byte", False, e)
        out = [view_str(self.core.model_token(<uint32_t> i)) for i in e.ids]
        for added in e.added:
            out[added.index] = to_str(added.text)
        return out

    def normalize(self, text):
        return to_str(self.core.normalize(view_of(text)))

    def pre_tokenize(self, text):
        cdef vector[string] pieces
        cdef vector[Align] offsets
        cdef size_t i
        self.core.pre_tokenize(view_of(text), pieces, offsets)
        return [(to_str(pieces[i]), (offsets[i].begin, offsets[i].end)) for i in range(pieces.size())]

    def token_to_id(self, str token not None):
        cdef optional[uint32_t] found = self.core.id(token.encode())
        return found.value() if found.has_value() else None

    cdef object token_or_none(self, long long id):
        if id < 0 or id > 0xFFFFFFFF:
            return None
        cdef string_view text = self.core.token(<uint32_t> id)
        return None if text.data() == NULL else view_str(text)

    cdef object token_text(self, int32_t id):
        """The one str for an id, as long as there is room for all of them; empty for an id without a token."""
        if not self._texts:
            self._texts = [None] * self._id_limit
        if not 0 <= id < <int32_t> self._id_limit:
            return self.token_or_none(id) or ""
        text = self._texts[id]
        if text is None:
            text = self.token_or_none(id) or ""
            if self._text_room > 0:
                self._text_room -= 80 + 4 * len(text)
                self._texts[id] = text
        return text

    def id_to_token(self, id):
        return self.token_or_none(id)

    def tokens(self, ids):
        return [self.token_or_none(i) for i in ids]

    def token_bytes(self, id):
        if self.token_or_none(id) is None:
            return None
        cdef string out = self.core.token_bytes(id)
        return PyBytes_FromStringAndSize(out.data(), out.size())

    @property
    def id_limit(self):
        return self.core.id_limit()

    def vocab_size(self, bint with_added=True):
        return self.core.size(with_added)

    def get_vocab(self, bint with_added=True):
        cdef vector[string_view] tokens
        cdef vector[uint32_t] ids
        cdef size_t i
        self.core.vocab(with_added, tokens, ids)
        return {view_str(tokens[i]): ids[i] for i in range(tokens.size())}

    def added_tokens(self):
        cdef AddedToken t
        cdef size_t i
        out = []
        for i in range(self.core.added().size()):
            t = self.core.added()[i]
            out.append((t.id, to_str(t.content), t.single_word, t.lstrip, t.rstrip, t.normalized, t.special))
        return sorted(out)

    def as_found(self):
        cdef AddedToken t
        cdef size_t i
        cdef bint normalizes = self.section("normalizer") not in (None, "null")
        cdef bytearray found = bytearray(self._id_limit)
        for i in range(self.core.added().size()):
            t = self.core.added()[i]
            found[t.id] = (t.lstrip or t.rstrip or (t.normalized and normalizes)
                           or self.core.model_token(t.id) != string_view(t.content)
                           or self.core.token(t.id) != string_view(t.content))
        if self.core.shows_unknown() and self.unknown_id() >= 0:
            found[self.unknown_id()] = True
        return bytes(found) if 1 in found else b""

    def section(self, str name):
        cdef const string* found = self.core.section(name.encode())
        return None if found == NULL else to_str(found[0])

    def unknown_id(self):
        cdef optional[uint32_t] found = self.core.unknown_id()
        return found.value() if found.has_value() else -1

    def model(self):
        cdef dict settings = json.loads(to_str(self.core.model_settings())), vocab = self.get_vocab(False)
        cdef vector[uint32_t] merges
        cdef size_t i
        out = {"type": settings["type"]}
        for name, otherwise in _MODELS[settings["type"]].items():
            given = settings.get(name)
            out[name] = otherwise if given is None else given
        if out.get("dropout") is not None:
            out["dropout"] = 0.0  # no other value is loaded
        if out["type"] == "Unigram":
            out["vocab"] = [[token, score] for token, score in zip(vocab, self.core.scores())]
            return out
        out["vocab"] = vocab
        if out["type"] == "BPE":
            tokens, merges = {id: token for token, id in vocab.items()}, self.core.merges()
            out["merges"] = [[tokens[merges[2 * i]], tokens[merges[2 * i + 1]]] for i in range(merges.size() // 2)]
        return out

    def decode(self, ids, bint skip_special_tokens=True):
        return self.text_of(ids, skip_special_tokens)

    cdef str text_of(self, object ids, cbool skip):
        cdef vector[uint32_t] column
        cdef string out
        ids_of(ids, column)
        if self.core.decodes_bytes():
            return text_of_bytes(self.core[0], column, skip)
        if column.size() < RELEASE_AT // 8:
            out = self.core.decode(column, skip)
        else:
            with nogil:
                out = self.core.decode(column, skip)
        return to_str(out)

    def decode_batch(self, rows, bint skip_special_tokens=True):
        return [self.text_of(row, skip_special_tokens) for row in rows]

    def decode_tokens(self, tokens):
        cdef vector[string] texts
        for token in tokens:
            texts.push_back((<str?> token).encode())
        return to_str(self.core.decode_tokens(texts))


include "_streams.pxi"
include "_rows.pxi"
include "_entry.pxi"
