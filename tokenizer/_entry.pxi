# From Tokenizer.encode to ids without a line of Python in between; included by _core.pyx. Tokenizer is an EncodeEntry.
# Anything but plain texts, truncation or padding goes on to _encode_general and its like.

cdef extern from *:
    """
    namespace {

    // Whether mask[id] is set for one of the ids; ids from `end` on have no mark.
    inline bool any_marked(const char* mask, uint32_t end, const int32_t* ids, Py_ssize_t n) {
      for (Py_ssize_t i = 0; i < n; ++i) {
        if (static_cast<uint32_t>(ids[i]) < end && mask[ids[i]]) return true;
      }
      return false;
    }

    inline PyObject** put_items(PyObject** to, PyObject* item, Py_ssize_t n) {
      for (; n > 0; --n) {
        Py_INCREF(item);
        *to++ = item;
      }
      return to;
    }
    // A new list of three runs of items.
    inline PyObject* list_of_runs(PyObject* first, Py_ssize_t n, PyObject* next, Py_ssize_t m, PyObject* last,
                                  Py_ssize_t k) {
      PyObject* list = PyList_New(n + m + k);
      if (!list) return nullptr;
      put_items(put_items(put_items(PySequence_Fast_ITEMS(list), first, n), next, m), last, k);
      return list;
    }
    // A new list of the items of two lists and n times another between them.
    inline PyObject* list_around(PyObject* before, PyObject* item, Py_ssize_t n, PyObject* after) {
      const Py_ssize_t first = PyList_GET_SIZE(before), last = PyList_GET_SIZE(after);
      PyObject* list = PyList_New(first + n + last);
      if (!list) return nullptr;
      PyObject** out = PySequence_Fast_ITEMS(list);
      for (Py_ssize_t i = 0; i < first; ++i) out = put_items(out, PyList_GET_ITEM(before, i), 1);
      out = put_items(out, item, n);
      for (Py_ssize_t i = 0; i < last; ++i) out = put_items(out, PyList_GET_ITEM(after, i), 1);
      return list;
    }

    // A text and a frame have few ids, for which a call costs more than a loop.
    inline int32_t* put_ids(int32_t* to, const int32_t* ids, size_t n) {
      if (n > 8) return static_cast<int32_t*>(std::memcpy(to, ids, n * sizeof *ids)) + n;
      for (; n > 0; --n) *to++ = *ids++;
      return to;
    }

    }  // namespace
    """
    bint any_marked(const char* mask, uint32_t end, const int32_t* ids, Py_ssize_t n)
    object list_of_runs(object first, Py_ssize_t n, object next, Py_ssize_t m, object last, Py_ssize_t k)
    object list_around(list before, object item, Py_ssize_t n, list after)
    int32_t* put_ids(int32_t* to, const int32_t* ids, size_t n)

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
    object PyObject_GenericGetAttr(object, object)

cdef enum:
    FEW = 8  # ids that an encoding has in itself


@cython.freelist(64)
cdef class FreshEncoding:
    """The ids of one text; the columns of its subclass are made at the first that is asked for."""

    cdef int32_t[FEW] few  # count of them; in raw if they are more
    cdef bytes raw
    cdef Py_ssize_t count
    cdef bint parse_special
    cdef bint placed  # the ids say where they lie
    cdef bint bare  # nothing but the ids is known of the text's tokens, as in HF's fast encodings
    cdef bint alone  # nothing but a frame is around the text
    cdef RowFrames frame
    cdef object source  # the text if it is alone, else the call that it is a row of
    cdef object columns  # None: not made yet
    cdef Py_ssize_t row, padding  # its number, and how many tokens pad it
    cdef bint pads_left
    cdef bint was_read  # a column, by encoding the text again

    @cython.final
    @cython.nonecheck(False)
    cdef inline int32_t* data(self) noexcept:
        if self.raw is None:
            return self.few
        return <int32_t*> PyBytes_AS_STRING(self.raw)

    @cython.final
    @cython.nonecheck(False)
    cdef inline int32_t* room(self, Py_ssize_t count) except NULL:
        """Where its ids are written."""
        self.count = count
        if count > FEW:
            self.raw = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
        return self.data()

    @property
    def ids(self):
        return self.id_list()

    @cython.final
    cdef inline object id_list(self):
        if self.columns is None:
            return list_of_ids(self.data(), self.count)
        return self._ids.tolist()

    cdef RowCall sample(self, int content, cbool keeps_rest):
        """Its text as a row again, with more columns; None if the general way has to be gone."""
        cdef Py_ssize_t at = self.row
        source = self.source
        if self.alone:
            return RowCall.made(self.frame.core, self.frame, [source], None, None, None, self.parse_special,
                                content, keeps_rest, False)
        if self.bare and source.seconds[at] is not None:
            return None  # HF's have other type ids
        return RowCall.made(self.frame.core, self.frame, source.firsts[at : at + 1], source.seconds[at : at + 1],
                            source.truncation, source.padding, source.parse_special, content, keeps_rest, False,
                            source.padded_to)

    cdef RowCall once(self, int content):
        """The row of the first reading; None for later ones, so that these keep the columns."""
        if self.columns is not None or self.was_read:
            return None
        self.was_read = True
        return self.sample(content, False)

    cdef list listed(self, int column):
        """None if _columns has to say."""
        cdef RowCall call = None
        if column < OFFSETS or not self.bare:
            call = self.once(max(column - OFFSETS + 1, 0))
        return None if call is None else call.lists(column)[0]

    @property
    def tokens(self):
        cdef RowCall call
        found = None
        if self.columns is None and self.alone and not self.bare:
            return self.fresh_tokens()
        if not self.bare:
            call = self.once(WITH_WORDS)
            found = None if call is None else call.tokens(0, False)
        return self._token_list() if found is None else found[0]

    cdef list fresh_tokens(self):
        cdef RowFrames frame = self.frame
        cdef Py_ssize_t i, begin = frame.before.size(), end = self.count - <Py_ssize_t> frame.after.size()
        cdef const int32_t* ids = self.data()
        cdef list out = frame.tokens_before + [None] * (end - begin) + frame.tokens_after
        cdef Py_ssize_t at = len(frame.tokens_before)
        if any_marked(frame.as_found, len(frame.as_found), ids + begin, end - begin):
            return frame.tokens_before + frame.core.encode_tokens(self.source, self.parse_special) + frame.tokens_after
        for i in range(begin, end):
            out[at] = frame.core.token_text(ids[i])
            at += 1
        return out

    @property
    def type_ids(self):
        return self.type_list()

    @cython.final
    cdef object type_list(self):
        cdef RowFrames frame = self.frame
        if self.columns is not None or not self.alone:
            found = self.listed(TYPES)
            return self._column_list("_types") if found is None else found
        return list_around(frame.types_before, frame.type_id, self.count - frame.around, frame.types_after)

    @property
    def special_tokens_mask(self):
        cdef RowFrames frame = self.frame
        if self.columns is not None or not self.alone:
            found = self.listed(SPECIAL)
            return self._column_list("_special") if found is None else found
        return list_of_runs(1, frame.before.size(), 0, self.count - frame.around, 1, frame.after.size())

    @property
    def attention_mask(self):
        return self.mask_list()

    @cython.final
    cdef object mask_list(self):
        cdef Py_ssize_t left
        if self.columns is not None:
            return self._column_list("_attention")
        left = self.padding if self.pads_left else 0
        return list_of_runs(0, left, 1, self.count - self.padding, 0, self.padding - left)

    @property
    def offsets(self):
        return self.pair_list()

    @cython.final
    cdef object pair_list(self):
        cdef Align[FEW] few
        cdef Aligns many
        cdef Align* pairs = few
        cdef size_t i, before, end
        if self.columns is None and self.alone and self.placed:
            if self.count > FEW:
                many.resize(self.count)  # not cleared
                pairs = many.data()
            before, end = self.frame.before.size(), self.count - self.frame.after.size()
            if self.frame.core.spans_into(self.data() + before, end - before, self.source, pairs + before):
                for i in range(before):
                    pairs[i].begin = pairs[i].end = 0
                for i in range(end, self.count):
                    pairs[i].begin = pairs[i].end = 0
                return list_of_pairs(<const int32_t*> pairs, self.count)
        found = self.listed(OFFSETS)
        return self._offset_list() if found is None else found

    @property
    def word_ids(self):
        found = self.listed(WORDS)
        return self._word_list() if found is None else found

    @property
    def sequence_ids(self):
        cdef list found = [None] * len(self)
        cdef RowCall call = self.once(WITH_IDS)
        said = None if call is None else call.tokens(0, True)
        ranges = self._ranges if said is None else said[1]
        for sequence in range(len(ranges) or 1):
            start, stop = ranges.get(sequence, (0, len(found)))
            found[start:stop] = [sequence] * (stop - start)
        return found

    def __len__(self):
        return self.count if self.columns is None else len(self._ids)

    @property
    def _columns(self):
        cdef FreshEncoding made = None
        cdef RowCall call
        if self.columns is None:
            # Another thread may do the same at the same time, with the same result, and then change it; the ids stay
            # where they are.
            call = self.sample(WITH_IDS if self.bare else WITH_WORDS, True)
            if call is not None:
                made = call.encoding(self.bare)
            if made is None and not self.alone:
                made = self.source.general(self.row)
            elif made is None:
                made = self.frame.sequences.general(self.source, self.frame.special, self.bare, self.parse_special)
            if self.columns is None:
                self.columns = made.columns
        return self.columns

    @_columns.setter
    def _columns(self, columns not None):
        self.columns = columns


# Not a class of Python's own: objects of those take more instructions.
cdef class Encoding(FreshEncoding, EncodingMethods):
    def __getattribute__(self, name):
        # Nothing can take the place of these in a class that is not Python's own: looking them up would only take
        # time.
        if type(self) is Encoding:
            if name is "ids":
                return self.id_list()
            if name is "offsets":
                return self.pair_list()
            if name is "attention_mask":
                return self.mask_list()
            if name is "type_ids":
                return self.type_list()
        return PyObject_GenericGetAttr(self, name)

    def __init__(self):
        self.columns = self._make(np.empty(0, np.int32), None, None, [])._columns

    def _offset_list(self):
        cdef cnp.ndarray pairs
        if self._offsets is None:
            return [(0, 0)] * len(self._ids)
        pairs = np.ascontiguousarray(self._offsets, np.int32)
        return list_of_pairs(<const int32_t*> cnp.PyArray_DATA(pairs), pairs.size // 2)


cdef class EncodeEntry:
    """The settings of a tokenizer that a call reads."""

    cdef CoreTokenizer native  # None on the reference backend
    cdef RowFrames plain, special
    cdef RowFrames plain_frame, special_frame  # around one text; None if more than that is put around it
    cdef bytes control  # by id: 1 for a control token, which must not come out of untrusted text
    cdef public object _truncation, _padding, _encode_special

    def _set_entry(self, core, plain, special, bytes control not None):
        """core and frames: None if texts are not encoded here."""
        self.native, self.plain, self.special, self.control = core, plain, special, control
        self.plain_frame = plain if plain is not None and self.plain.is_frame else None
        self.special_frame = special if special is not None and self.special.is_frame else None

    def _copy_entry(self, EncodeEntry other not None):
        self._set_entry(other.native, other.plain, other.special, other.control)
        self._truncation, self._padding = other._truncation, other._padding
        self._encode_special = other._encode_special

    @cython.final
    @cython.nonecheck(False)
    cdef inline RowFrames frame_of(self, bint special):
        return self.special_frame if special else self.plain_frame

    @cython.final
    @cython.nonecheck(False)
    cdef inline bint reshapes(self) noexcept:
        """Whether rows are cut or padded."""
        return self._truncation is not None or self._padding is not None

    @cython.final
    @cython.nonecheck(False)
    cdef FreshEncoding fresh(self, RowFrames frame, object text, cbool parse_special, bint bare):
        cdef CallIds ids
        cdef bint placed = frame.core.ids_into(text, parse_special, ids)
        cdef FreshEncoding made = <FreshEncoding> Encoding.__new__(Encoding)
        frame.put(made.room(frame.around + ids.size()), ids)
        made.frame, made.source, made.alone = frame, text, True
        made.parse_special, made.placed, made.bare = parse_special, placed and not bare, bare
        return made

    @cython.nonecheck(False)
    def encode(self, sequence, pair=None, bint is_pretokenized=False, bint add_special_tokens=True):
        """Encode one sequence, or a pair; each a string, or a list of strings with ``is_pretokenized``."""
        cdef RowFrames frame = self.frame_of(add_special_tokens)
        if (frame is None or self.reshapes() or pair is not None or is_pretokenized
                or not PyUnicode_CheckExact(sequence)):
            return self._encode_general(sequence, pair, is_pretokenized, add_special_tokens)
        return self.fresh(frame, sequence, self._encode_special is False, False)

    cdef list fresh_batch(self, object given, object is_pretokenized, bint special, bint bare):
        """None if a text is not a plain string, or settings want more than a frame around it."""
        cdef RowFrames frame = self.frame_of(special)
        cdef cbool parse_special = self._encode_special is False  # once: other threads may set it
        cdef Py_ssize_t since = 0
        cdef list texts, out = []
        if frame is None or self.reshapes() or is_pretokenized is not False or type(given) not in (list, tuple):
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
        cdef RowCall call = RowCall.made(self.native, self.special if special else self.plain, firsts,
                                         seconds, truncation, padding, parse_special,
                                         WITH_OFFSETS if OFFSETS in columns else WITH_IDS, keeps_rest, wide)
        if call is None or not (listed or call.rows.get().are_equally_long()):
            return None
        found = [call.lists(column) if listed else call.array(column, wide) for column in columns]
        return found, call.samples(), call.rows.get().longest()

    def _row_encodings(self, source not None, bint special):
        """An encoding of each sample of a RowSource, cut and padded; their other columns are made of it.
        None if the general way has to be gone."""
        cdef RowFrames frames = self.special if special else self.plain
        cdef RowCall call = RowCall.made(self.native, frames, source.firsts, source.seconds, source.truncation,
                                         source.padding, source.parse_special, WITH_IDS, False, False)
        cdef Rows* rows
        cdef FreshEncoding made
        cdef vector[int32_t] flat
        cdef size_t i, at = 0, n
        cdef list out = []
        cdef bint pads_left = source.padding is not None and source.padding.direction == "left"
        if call is None:
            return None
        rows = call.rows.get()
        flat.resize(rows.total())
        rows.put(row_column(0), flat.data())
        source.padded_to = rows.padded_to()
        for i in range(rows.count()):
            n = rows.length(i)
            made = Encoding.__new__(Encoding)
            if n:
                memcpy(made.room(n), flat.data() + at, n * sizeof(int32_t))
            made.padding = n - rows.without_padding(i)
            made.pads_left = pads_left
            made.frame, made.source, made.row, made.bare = frames, source, i, source.fast
            out.append(made)
            at += n
        return out

    def decode(self, ids, bint skip_special_tokens=True):
        if self.native is None:
            return self._core.decode(ids, skip_special_tokens)
        return self.native.text_of(ids, skip_special_tokens)

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
        cdef RowFrames frame = self.frame_of(add_special_tokens)
        cdef CallIds ids
        cdef cbool control = parse_special
        if frame is not None:
            self.native.ids_into(text, control, ids)
            if control or not any_marked(self.control, len(self.control), ids.data(), ids.size()):
                return frame.array(ids)
        return self._array_general(text, add_special_tokens, control)

    def encode_with_offsets(self, text, add_special_tokens=True, *, parse_special=True):
        """(ids int32[n], offsets int32[n, 2] in code points of ``text``)."""
        cdef RowFrames frame = self.frame_of(add_special_tokens)
        cdef cnp.npy_intp[2] shape
        cdef cnp.ndarray rows
        cdef Align* out
        cdef size_t before, n
        cdef CallIds ids
        if frame is None or not parse_special or not self.native.ids_into(text, True, ids):
            return self._offsets_general(text, add_special_tokens, parse_special)
        before, n = frame.before.size(), ids.size()
        shape[0], shape[1] = frame.around + n, 2
        rows = cnp.new_array(2, shape, cnp.NPY_INT32)
        out = <Align*> cnp.PyArray_DATA(rows)
        if not self.native.spans_into(ids.data(), n, text, out + before):
            return self._offsets_general(text, add_special_tokens, parse_special)
        memset(out, 0, before * sizeof(Align))
        memset(out + before + n, 0, frame.after.size() * sizeof(Align))
        return frame.array(ids), rows
