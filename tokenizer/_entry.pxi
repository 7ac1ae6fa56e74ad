# From Tokenizer.encode to ids without a line of Python in between; included by _core.pyx. Tokenizer is an EncodeEntry,
# Encoding a FreshEncoding. Anything but plain texts, truncation or padding goes on to _encode_general and its like.

cdef extern from *:
    """
    namespace {

    // Whether ids[0..n) are all below `end`: without a branch an id, so that compilers look at many at once.
    inline bool all_below(uint32_t end, const int32_t* ids, Py_ssize_t n) {
      uint32_t found = 0;
      for (Py_ssize_t i = 0; i < n; ++i) found |= static_cast<uint32_t>(static_cast<uint32_t>(ids[i]) >= end);
      return !found;
    }

    // A new list of the ids: shared int objects for those below `end`, new ones for any other. A post-processor may
    // name ids that the vocabulary does not have.
    inline PyObject* list_of_shared(PyObject** items, uint32_t end, const int32_t* ids, Py_ssize_t n) {
      PyObject* list = PyList_New(n);
      if (!list) return nullptr;
      PyObject** out = PySequence_Fast_ITEMS(list);
      if (!all_below(end, ids, n)) {
        for (Py_ssize_t i = 0; i < n; ++i) {
          if (static_cast<uint32_t>(ids[i]) < end) {
            out[i] = take_shared(is_by_address(end) ? int_at(ids[i]) : items[ids[i]]);
          } else if (!(out[i] = PyLong_FromLong(ids[i]))) {
            Py_DECREF(list);
            return nullptr;
          }
        }
      } else if (is_by_address(end)) {
        for (Py_ssize_t i = 0; i < n; ++i) out[i] = take_shared(int_at(ids[i]));
      } else {
        for (Py_ssize_t i = 0; i < n; ++i) out[i] = take_shared(items[ids[i]]);
      }
      return list;
    }

    // Whether mask[id] is set for one of the ids; ids from `end` on have no mark.
    inline bool any_marked(const char* mask, uint32_t end, const int32_t* ids, Py_ssize_t n) {
      for (Py_ssize_t i = 0; i < n; ++i) {
        if (static_cast<uint32_t>(ids[i]) < end && mask[ids[i]]) return true;
      }
      return false;
    }

    inline PyObject* new_of(PyObject* type, PyObject* no_arguments) {
      auto* t = reinterpret_cast<PyTypeObject*>(type);
      return t->tp_new(t, no_arguments, nullptr);
    }

    }  // namespace
    """
    object list_of_shared(PyObject** items, uint32_t end, const int32_t* ids, Py_ssize_t n)
    bint any_marked(const char* mask, uint32_t end, const int32_t* ids, Py_ssize_t n)
    object new_of(PyObject* type, PyObject* no_arguments)

cdef extern from "memory/scratch_vector.hpp" namespace "fasttoken":
    cppclass Aligns "fasttoken::ScratchVector<fasttoken::Align>":
        Align* data()
        size_t size()
        void resize(size_t) except +

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    void* PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    char* PyBytes_AS_STRING(object)
    int PyErr_CheckSignals() except -1

cdef tuple _nothing = ()

# Offsets of fewer tokens that the ids do not say are made anew at each reading; making a column of them takes longer.
cdef enum:
    SHORT = 64
    FEW = 8  # ids that an encoding has in itself


@cython.final
cdef class QuickFrame:
    """The tokens that a post-processor puts around one text, ready to be copied."""

    cdef vector[int32_t] before, after
    cdef object sequences, frame, type, type_id
    cdef list tokens_before, tokens_after, types_before, types_after
    cdef bytes as_found  # by id: 1 if its token is known from the text alone

    def __cinit__(self, sequences, frame, type):
        if not issubclass(type, FreshEncoding):
            raise TypeError(f"{type!r} is not a type of FreshEncoding")
        self.sequences, self.frame, self.type = sequences, frame, type
        self.before = frame.before.ids
        self.after = frame.after.ids
        self.tokens_before, self.tokens_after = frame.before.tokens, frame.after.tokens
        self.type_id, self.types_before, self.types_after = frame.type_id, frame.before.type_ids, frame.after.type_ids
        self.as_found = sequences.as_found

    cdef size_t around(self, size_t n):
        return self.before.size() + n + self.after.size()

    cdef int put(self, int32_t* to, const CallIds& ids) except -1:
        """The ids of a text and of its frame; there is room for all of them."""
        cdef size_t before = self.before.size(), after = self.after.size(), n = ids.size()
        if before:
            memcpy(to, self.before.data(), before * 4)
        if n:
            memcpy(to + before, ids.data(), n * 4)
        if after:
            memcpy(to + before + n, self.after.data(), after * 4)
        return 0

    cdef cnp.ndarray array(self, const CallIds& ids):
        cdef cnp.npy_intp shape = self.around(ids.size())
        cdef cnp.ndarray out = cnp.new_array(1, &shape, cnp.NPY_INT32)
        self.put(<int32_t*> cnp.PyArray_DATA(out), ids)
        return out


cdef class FreshEncoding:
    """The ids of one text; the columns of its subclass are made at the first that is asked for."""

    cdef int32_t[FEW] few  # count of them; in raw if they are more
    cdef bytes raw
    cdef Py_ssize_t count
    cdef bint parse_special
    cdef bint placed  # the ids say where they lie
    cdef bint bare  # nothing but the ids is known of the text's tokens, as in HF's fast encodings
    cdef CoreTokenizer core
    cdef QuickFrame frame  # None: of a row, whose other columns `source` makes
    cdef object text
    cdef object source
    cdef object columns  # None: not made yet
    cdef Py_ssize_t row, padding  # its number, and how many tokens pad it
    cdef bint pads_left

    cdef int32_t* data(self):
        if self.raw is None:
            return self.few
        return <int32_t*> PyBytes_AS_STRING(self.raw)

    cdef int32_t* room(self, Py_ssize_t count) except NULL:
        """Where its ids are written."""
        self.count = count
        if count > FEW:
            self.raw = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
        return self.data()

    @property
    def ids(self):
        if self.columns is None:
            return list_of_shared(self.core._int_items, self.core._int_count, self.data(), self.count)
        return self._ids.tolist()

    @property
    def tokens(self):
        if self.columns is None and self.frame is not None and not self.bare:
            return self.fresh_tokens()
        return self._token_list()

    cdef list fresh_tokens(self):
        cdef QuickFrame frame = self.frame
        cdef Py_ssize_t i, begin = frame.before.size(), end = self.count - <Py_ssize_t> frame.after.size()
        cdef const int32_t* ids = self.data()
        cdef list out = frame.tokens_before + [None] * (end - begin) + frame.tokens_after
        cdef Py_ssize_t at = len(frame.tokens_before)
        if any_marked(frame.as_found, len(frame.as_found), ids + begin, end - begin):
            return frame.tokens_before + self.core.encode_tokens(self.text, self.parse_special) + frame.tokens_after
        for i in range(begin, end):
            out[at] = self.core.token_text(ids[i])
            at += 1
        return out

    @property
    def type_ids(self):
        cdef QuickFrame frame = self.frame
        if self.columns is not None or frame is None:
            return self._column_list("_types")
        return frame.types_before + [frame.type_id] * (self.count - frame.around(0)) + frame.types_after

    @property
    def special_tokens_mask(self):
        cdef QuickFrame frame = self.frame
        if self.columns is not None or frame is None:
            return self._column_list("_special")
        return [1] * frame.before.size() + [0] * (self.count - frame.around(0)) + [1] * frame.after.size()

    @property
    def attention_mask(self):
        cdef list ones
        if self.columns is not None:
            return self._column_list("_attention")
        ones = [1] * (self.count - self.padding)
        if not self.padding:
            return ones
        return [0] * self.padding + ones if self.pads_left else ones + [0] * self.padding

    @property
    def offsets(self):
        cdef Aligns pairs
        cdef Encoded found
        cdef size_t before, n
        if self.columns is not None or self.frame is None or self.bare:
            return self._offset_list()
        pairs.resize(self.count)  # not cleared
        before, n = self.frame.before.size(), self.count - self.frame.around(0)
        if not self.placed or not self.core.spans_into(self.data() + before, n, self.text, pairs.data() + before):
            if self.count >= SHORT:
                return self._offset_list()
            self.core.full_into(self.text, self.parse_special, "char", True, found)
            n = found.offsets.size()
            pairs.resize(self.frame.around(n))
            if n:
                memcpy(pairs.data() + before, found.offsets.data(), n * sizeof(Align))
        if before:
            memset(pairs.data(), 0, before * sizeof(Align))
        if self.frame.after.size():
            memset(pairs.data() + before + n, 0, self.frame.after.size() * sizeof(Align))
        return pairs_of(<const int32_t*> pairs.data(), pairs.size())

    @property
    def word_ids(self):
        cdef QuickFrame frame = self.frame
        cdef Encoded found
        if self.columns is not None or frame is None or self.bare:
            return self._word_list()
        self.core.full_into(self.text, self.parse_special, "byte", False, found)
        words = self.core.list_of(found.words.data(), found.words.size())
        return [None] * frame.before.size() + words + [None] * frame.after.size()

    def __len__(self):
        return self.count if self.columns is None else len(self._ids)

    @property
    def _columns(self):
        cdef FreshEncoding made
        if self.columns is None:
            # Another thread may do the same at the same time, with the same result, and then change it; the ids stay
            # where they are.
            made = type(self)()
            if self.frame is None:
                self.source.fill(made, self.row)
            else:
                bare = int32_array(self.data(), self.count) if self.bare else None
                self.frame.sequences.fill_fresh(made, self.text, self.frame.frame, bare, self.parse_special)
            if self.columns is None:
                self.columns = made.columns
        return self.columns

    @_columns.setter
    def _columns(self, columns not None):
        self.columns = columns


cdef class EncodeEntry:
    """The settings of a tokenizer that a call reads."""

    cdef CoreTokenizer native  # None on the reference backend
    cdef QuickFrame plain, special
    cdef RowFrames plain_rows, special_rows
    cdef bytes control  # by id: 1 for a control token, which must not come out of untrusted text
    cdef public object _truncation, _padding, _encode_special

    def _set_entry(self, core, plain, special, plain_rows, special_rows, bytes control not None):
        """core: None if texts are not encoded here; a frame is None if encode() does more."""
        self.native, self.plain, self.special, self.control = core, plain, special, control
        self.plain_rows, self.special_rows = plain_rows, special_rows

    def _copy_entry(self, EncodeEntry other not None):
        self.native, self.plain, self.special = other.native, other.plain, other.special
        self.control = other.control
        self.plain_rows, self.special_rows = other.plain_rows, other.special_rows
        self._truncation, self._padding = other._truncation, other._padding
        self._encode_special = other._encode_special

    cdef QuickFrame frame_for(self, bint special):
        """The frame around one text; None if truncation or padding, or more than a frame, is asked for."""
        if self._truncation is not None or self._padding is not None:
            return None
        return self.special if special else self.plain

    cdef FreshEncoding fresh(self, QuickFrame frame, object text, cbool parse_special, bint bare):
        cdef CallIds ids
        cdef bint placed = self.native.ids_into(text, parse_special, ids)
        cdef FreshEncoding made = new_of(<PyObject*> frame.type, <PyObject*> _nothing)
        frame.put(made.room(frame.around(ids.size())), ids)
        made.core, made.frame, made.text = self.native, frame, text
        made.parse_special, made.placed, made.bare = parse_special, placed and not bare, bare
        return made

    def encode(self, sequence, pair=None, is_pretokenized=False, add_special_tokens=True):
        """Encode one sequence, or a pair; each a string, or a list of strings with ``is_pretokenized``."""
        cdef QuickFrame frame = self.frame_for(add_special_tokens)
        if frame is None or pair is not None or is_pretokenized is not False or not PyUnicode_CheckExact(sequence):
            return self._encode_general(sequence, pair, is_pretokenized, add_special_tokens)
        return self.fresh(frame, sequence, self._encode_special is False, False)

    cdef list fresh_batch(self, object given, object is_pretokenized, bint special, bint bare):
        """None if a text is not a plain string, or settings want more than a frame around it."""
        cdef QuickFrame frame = self.frame_for(special)
        cdef cbool parse_special = self._encode_special is False  # once: other threads may set it
        cdef Py_ssize_t since = 0
        cdef list texts, out = []
        if frame is None or is_pretokenized is not False or type(given) not in (list, tuple):
            return None
        texts = list(given)  # nothing else has it: making an encoding may run a collection, and that anything at all
        for text in texts:
            if not PyUnicode_CheckExact(text):
                return None
        for text in texts:
            out.append(self.fresh(frame, text, parse_special, bare))
            since += PyUnicode_GET_LENGTH(text)
            if since > RELEASE_AT:  # as one long text does, for other threads and for Ctrl-C
                since = 0
                PyErr_CheckSignals()
                with nogil:
                    pass
        return out

    def _row_columns(self, list firsts not None, list seconds, bint special, truncation, padding,
                     bint parse_special, tuple columns not None, str kind not None, bint keeps_rest):
        """(columns, the number of each row's sample, the length of the longest row) of texts or lists of words and
        their seconds; None if the general way has to be gone.

        columns: of 0 ids, 1 type ids, 2 attention mask, 3 special tokens mask, 4 offsets. kind: "int32" or "int64"
        for arrays [rows, length] (offsets [rows, length, 2]), of rows of one length alone; "list" for lists of lists.
        """
        cdef bint listed = kind == "list", wide = kind == "int64"
        cdef RowCall call = RowCall.made(self.native, self.special_rows if special else self.plain_rows, firsts,
                                         seconds, truncation, padding, parse_special, OFFSETS in columns,
                                         keeps_rest, wide)
        if call is None or not (listed or call.rows.get().are_equally_long()):
            return None
        found = [call.lists(column) if listed else call.array(column, wide) for column in columns]
        return found, call.samples(), call.rows.get().longest()

    def _row_encodings(self, list firsts not None, list seconds, bint special, truncation, padding,
                       bint parse_special, source not None, type not None):
        """An encoding of ``type`` for each sample, cut and padded; their other columns are made by ``source``, which
        is told what they are padded to. None if the general way has to be gone."""
        cdef RowCall call = RowCall.made(self.native, self.special_rows if special else self.plain_rows, firsts,
                                         seconds, truncation, padding, parse_special, False, False, False)
        cdef Rows* rows
        cdef FreshEncoding made
        cdef vector[int32_t] flat
        cdef size_t i, at = 0, n
        cdef list out = []
        if not issubclass(type, FreshEncoding):
            raise TypeError(f"{type!r} is not a type of FreshEncoding")
        if call is None:
            return None
        rows = call.rows.get()
        flat.resize(rows.total())
        rows.put(row_column(0), flat.data())
        source.padded_to = rows.padded_to()
        for i in range(rows.count()):
            n = rows.length(i)
            made = new_of(<PyObject*> type, <PyObject*> _nothing)
            if n:
                memcpy(made.room(n), flat.data() + at, n * sizeof(int32_t))
            made.padding = n - rows.without_padding(i)
            made.pads_left = padding is not None and padding.direction == "left"
            made.core, made.source, made.row = self.native, source, i
            out.append(made)
            at += n
        return out

    def encode_batch(self, input, is_pretokenized=False, add_special_tokens=True):
        """Encode each input, then pad them together if padding is on."""
        made = self.fresh_batch(input, is_pretokenized, add_special_tokens, False)
        return self._batch_general(input, is_pretokenized, add_special_tokens, False) if made is None else made

    def encode_batch_fast(self, input, is_pretokenized=False, add_special_tokens=True):
        """``encode_batch`` for the ids: offsets are all (0, 0), words None, tokens empty, as in HF."""
        made = self.fresh_batch(input, is_pretokenized, add_special_tokens, True)
        return self._batch_general(input, is_pretokenized, add_special_tokens, True) if made is None else made

    def encode_array(self, text, add_special_tokens=True, *, parse_special=True):
        """The ids. With ``parse_special=False`` control tokens in ``text`` are ordinary text: no id of one
        comes out of it. Other added tokens are HF\'s; docs/TOKENIZER.md says which tokens are control tokens."""
        cdef QuickFrame frame = self.special if add_special_tokens else self.plain
        cdef CallIds ids
        cdef cbool control = parse_special
        if frame is not None:
            self.native.ids_into(text, control, ids)
            if control or not any_marked(self.control, len(self.control), ids.data(), ids.size()):
                return frame.array(ids)
        return self._array_general(text, add_special_tokens, control)

    def encode_with_offsets(self, text, add_special_tokens=True, *, parse_special=True):
        """(ids int32[n], offsets int32[n, 2] in code points of ``text``)."""
        cdef QuickFrame frame = self.special if add_special_tokens else self.plain
        cdef cnp.npy_intp[2] shape
        cdef cnp.ndarray rows
        cdef Align* out
        cdef size_t before, n
        cdef CallIds ids
        if frame is None or not parse_special or not self.native.ids_into(text, True, ids):
            return self._offsets_general(text, add_special_tokens, parse_special)
        before, n = frame.before.size(), ids.size()
        shape[0], shape[1] = frame.around(n), 2
        rows = cnp.new_array(2, shape, cnp.NPY_INT32)
        out = <Align*> cnp.PyArray_DATA(rows)
        if not self.native.spans_into(ids.data(), n, text, out + before):
            return self._offsets_general(text, add_special_tokens, parse_special)
        memset(out, 0, before * sizeof(Align))
        memset(out + before + n, 0, frame.after.size() * sizeof(Align))
        return frame.array(ids), rows
