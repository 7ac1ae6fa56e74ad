# Texts as rows of a batch, cut and padded in one call of the core; included by _core.pyx.

cdef extern from "rows.hpp" namespace "fasttoken":
    cppclass RowText:
        string_view utf8
        const void* characters
        size_t count
        int width
        cbool ascii
        int32_t word
    cppclass RowSample:
        int64_t first, second
    cppclass RowPiece:
        int sequence
        vector[int32_t] ids
        int64_t type, rest_type
    cppclass RowLayout "fasttoken::RowLayout":
        void push_back(const RowPiece&) except +
        size_t size()
        const RowPiece& operator[](size_t)
    cppclass RowCut:
        int strategy
        uint64_t max_length, stride
        cbool left, keeps_rest
        uint64_t added[2]
    cppclass RowPadding:
        int kind
        uint64_t length, multiple
        cbool left
        int64_t id, type
    cppclass RowColumn:
        pass
    cppclass Rows:
        cbool encode(const vector[RowText]&, const vector[RowSample]&) except +raise_core nogil
        cbool cut(const RowLayout&, const RowLayout&, const RowCut&, const RowPadding&) except +raise_core nogil
        size_t count()
        size_t length(size_t)
        size_t without_padding(size_t)
        const RowLayout& layout(size_t)
        size_t size(size_t, int)
        cbool is_rest(size_t, int)
        const int32_t* ids(size_t, int)
        const string* text(size_t, int, size_t)
        uint32_t sample(size_t)
        cbool are_equally_long()
        size_t total()
        size_t longest()
        size_t padded_to()
        void put(RowColumn, int32_t*) except +raise_core nogil
        void put(RowColumn, int64_t*) except +raise_core nogil

cdef extern from *:
    """
    namespace {
    inline fasttoken::RowColumn row_column(int number) { return static_cast<fasttoken::RowColumn>(number); }
    inline std::unique_ptr<fasttoken::Rows> new_rows(const fasttoken::Core& core, bool parse_special, int content) {
      return std::make_unique<fasttoken::Rows>(core, parse_special, static_cast<fasttoken::RowContent>(content));
    }
    }  // namespace
    """
    RowColumn row_column(int) nogil
    unique_ptr[Rows] new_rows(const Core&, cbool, int) except +raise_core

cdef enum:  # RowColumn
    IDS, TYPES, ATTENTION, SPECIAL, OFFSETS, WORDS
cdef enum:  # RowContent
    WITH_IDS, WITH_OFFSETS, WITH_WORDS

cdef object _MOST_INT32 = (1 << 31) - 1
cdef dict _strategies = {"longest_first": 1, "only_first": 2, "only_second": 3}


@cython.final
cdef class RowFrames:
    """The tokens that a post-processor puts around one sequence, and around two."""

    cdef CoreTokenizer core
    cdef RowLayout single, pair
    cdef object of_single, of_pair, sequences, type_id
    cdef bint special, trims_first, is_frame
    cdef uint64_t added[2]
    cdef bytes as_found  # by id: 1 if its token is known from the text alone
    # Of a frame, which is no more than tokens before and behind one text:
    cdef vector[int32_t] before, after
    cdef Py_ssize_t around  # how many these are
    cdef list tokens_before, tokens_after, types_before, types_after

    def __cinit__(self, CoreTokenizer core not None, sequences, single, pair, frame, added, bint trims_first,
                  bint special):
        """single, pair, frame: a Layout or Frame of post_processing.py, or None. added: how many tokens truncation
        leaves room for. trims_first: offsets are trimmed before anything is put around a sequence. special: asked for,
        if the post-processor has any."""
        self.core, self.sequences, self.of_single, self.of_pair = core, sequences, single, pair
        self.trims_first, self.special, self.as_found = trims_first, special, sequences.as_found
        self.added[0], self.added[1] = added
        fill_layout(self.single, single)
        fill_layout(self.pair, pair)
        self.is_frame = frame is not None and single.tokens is not None
        if self.is_frame:
            self.before, self.after = frame.before, frame.after
            self.around = self.before.size() + self.after.size()
            types, at = [piece[2] for piece in single.pieces], len(frame.before)
            self.types_before, self.type_id, self.types_after = types[:at], types[at], types[at + 1 :]
            self.tokens_before, self.tokens_after = single.tokens[:at], single.tokens[at + 1 :]

    @cython.nonecheck(False)
    cdef inline void put(self, int32_t* to, const CallIds& ids) noexcept:
        """The ids of a text and of its frame; there is room for all of them."""
        to = put_ids(to, self.before.data(), self.before.size())
        to = put_ids(to, ids.data(), ids.size())
        put_ids(to, self.after.data(), self.after.size())

    cdef cnp.ndarray array(self, const CallIds& ids):
        cdef cnp.npy_intp shape = self.around + ids.size()
        cdef cnp.ndarray out = cnp.new_array(1, &shape, cnp.NPY_INT32)
        self.put(<int32_t*> cnp.PyArray_DATA(out), ids)
        return out


cdef int fill_layout(RowLayout& layout, of) except -1:
    cdef RowPiece piece
    if of is not None:
        for piece.sequence, piece.ids, piece.type, piece.rest_type in of.pieces:
            layout.push_back(piece)
    return 0


cdef int add_text(object text, int32_t word, vector[RowText]& texts, size_t* total) except -1:
    """False if it is no str."""
    cdef RowText row
    if not isinstance(text, str):
        return False
    row.count = PyUnicode_GET_LENGTH(text)
    row.ascii, row.word = PyUnicode_IS_COMPACT_ASCII(text), word
    if not row.ascii and QUICK_FROM <= row.count < QUICK_TO and lacks_utf8(text):
        row.characters, row.width = PyUnicode_DATA(text), PyUnicode_KIND(text)
        total[0] += 2 * row.count
    else:
        row.utf8 = view_of(text)
        total[0] += row.utf8.size()
    texts.push_back(row)
    return True


cdef int64_t add_sequence(object given, vector[RowText]& texts, size_t* total) except -2:
    """How many texts it has; -1 if it is neither a str nor a list of words."""
    cdef int64_t count = 0
    if isinstance(given, str):
        return 1 if add_text(given, -1, texts, total) else -1
    if type(given) is not list and type(given) is not tuple:
        return -1
    for word in given:
        if not add_text(word, count, texts, total):
            return -1
        count += 1
    return count


cdef class RowCall:
    """Samples as rows, whose columns are taken out of it."""

    cdef CoreTokenizer core
    cdef RowFrames frames
    cdef object padding
    cdef unique_ptr[Rows] rows

    @staticmethod
    cdef RowCall made(CoreTokenizer core, RowFrames frames, list firsts, list seconds, truncation, padding,
                      cbool parse_special, int content, cbool keeps_rest, cbool wide, Py_ssize_t padded_to=-1):
        """padded_to: the length, if the samples of a batch gave it. None if another way has to be gone."""
        cdef RowCall self = RowCall.__new__(RowCall)
        cdef vector[RowText] texts
        cdef vector[RowSample] samples
        cdef RowSample sample
        cdef RowCut cut
        cdef RowPadding pad
        cdef size_t total = 0
        cdef Py_ssize_t i
        cdef cbool known = True
        if core is None or frames is None or (content != WITH_IDS and not frames.trims_first):
            return None
        if padding is not None and not wide and (padding.pad_id > _MOST_INT32 or padding.pad_type_id > _MOST_INT32):
            return None
        for i in range(len(firsts)):
            sample.first, sample.second = add_sequence(firsts[i], texts, &total), -1
            if sample.first < 0:
                return None
            if seconds is not None and seconds[i] is not None:
                sample.second = add_sequence(seconds[i], texts, &total)
                if sample.second < 0 or frames.of_pair is None:
                    return None
            elif frames.of_single is None:
                return None
            samples.push_back(sample)
        if truncation is not None:
            cut.strategy = _strategies[truncation.strategy]
            cut.max_length, cut.stride = truncation.max_length, truncation.stride
            cut.left, cut.keeps_rest = truncation.direction == "left", keeps_rest
            cut.added[0], cut.added[1] = frames.added[0], frames.added[1]
        if padding is not None:
            pad.kind = 1 if padding.length is None else 2
            pad.length, pad.multiple = padding.length or 0, padding.pad_to_multiple_of or 0
            if padded_to >= 0:
                pad.kind, pad.length = 2, padded_to
            pad.left, pad.id, pad.type = padding.direction == "left", padding.pad_id, padding.pad_type_id
        self.core, self.frames, self.padding = core, frames, padding
        self.rows = new_rows(core.core[0], parse_special, content)
        if total < RELEASE_AT:
            known = (self.rows.get().encode(texts, samples)
                     and self.rows.get().cut(frames.single, frames.pair, cut, pad))
        else:
            with nogil:
                known = (self.rows.get().encode(texts, samples)
                         and self.rows.get().cut(frames.single, frames.pair, cut, pad))
        return self if known else None

    cdef cnp.ndarray array(self, int column, cbool wide):
        """[rows, length] if they are equally long, else [1, length of all]."""
        cdef Rows* rows = self.rows.get()
        cdef cnp.npy_intp[3] shape
        shape[0], shape[1], shape[2] = rows.count(), rows.longest(), 2
        if not rows.are_equally_long():
            shape[0], shape[1] = 1, rows.total()
        cdef cnp.ndarray out = cnp.new_array(3 if column == OFFSETS else 2, shape,
                                             cnp.NPY_INT64 if wide else cnp.NPY_INT32)
        cdef void* data = cnp.PyArray_DATA(out)
        with nogil:
            if wide:
                rows.put(row_column(column), <int64_t*> data)
            else:
                rows.put(row_column(column), <int32_t*> data)
        return out

    cdef list lists(self, int column):
        cdef Rows* rows = self.rows.get()
        cdef vector[int32_t] flat
        cdef size_t i, at = 0, n
        cdef list out = []
        flat.resize(rows.total() * (2 if column == OFFSETS else 1))
        rows.put(row_column(column), flat.data())
        for i in range(rows.count()):
            n = rows.length(i)
            if column == OFFSETS:
                out.append(list_of_pairs(flat.data() + 2 * at, n))
            elif column == WORDS:
                out.append([None if word < 0 else word for word in flat.data()[at : at + n]])
            else:
                out.append(list_of_ids(flat.data() + at, n))
            at += n
        return out

    cdef list samples(self):
        cdef size_t i
        return [self.rows.get().sample(i) for i in range(self.rows.get().count())]

    cdef object encoding(self, bint bare):
        """Its one sample, and the parts that were cut off; None if the general way has to be gone."""
        cdef Rows* rows = self.rows.get()
        cdef size_t i, n, at = 0
        cdef list columns, made = []
        if self.layout() is None:
            return None
        if rows.count() > 2 and rows.is_rest(2, 0) and rows.is_rest(2, 1):
            return None  # parts of both of a pair have parts themselves
        columns = [self.array(column, False) for column in range(OFFSETS if bare else WORDS + 1)]
        for i in range(rows.count()):
            n = rows.length(i)
            ids, types, attention, special, offsets, words = [
                column[i] if rows.are_equally_long() else column[0, at : at + n] for column in columns
            ] + [None, None] * bare
            tokens, ranges = self.tokens(i, bare)
            one = Encoding._make(ids, offsets, words, tokens, types, special, attention)
            one._ranges = ranges
            made.append(one)
            at += n
        made[0]._overflowing = made[1:]
        return made[0]

    cdef object layout(self):
        """None if it does not say the tokens and ranges."""
        said = self.frames.of_single if &self.rows.get().layout(0) == &self.frames.single else self.frames.of_pair
        return None if said.tokens is None or said.ranges is None else said

    cdef tuple tokens(self, size_t row, bint bare):
        """The tokens, and the range of each sequence; None without a layout()."""
        cdef Rows* rows = self.rows.get()
        cdef const RowLayout* layout = &rows.layout(row)
        cdef const int32_t* ids
        cdef const string* text
        cdef size_t i, k, n, padding = rows.length(row) - rows.without_padding(row)
        cdef int sequence
        cdef bint marked
        cdef list out = []
        cdef dict ranges = {}
        said = self.layout()
        if said is None:
            return None
        fill = [self.padding.pad_token] * padding if padding else []
        if padding and self.padding.direction == "left":
            out, fill = fill, []
        for i in range(layout.size()):
            sequence = layout[0][i].sequence
            if sequence < 0:
                out.append(said.tokens[i])
                continue
            ids, n = rows.ids(row, sequence), rows.size(row, sequence)
            if <int> said.ranges > rows.is_rest(row, sequence):
                ranges[sequence] = (len(out), len(out) + n)
            marked = any_marked(self.frames.as_found, len(self.frames.as_found), ids, n)
            for k in range(n):
                text = rows.text(row, sequence, k) if marked else NULL
                if bare:
                    out.append("")
                elif text != NULL:
                    out.append(to_str(text[0]))
                else:
                    out.append(view_str(self.core.core.model_token(<uint32_t> ids[k])) if marked
                               else self.core.token_text(ids[k]))
        return out + fill, ranges
