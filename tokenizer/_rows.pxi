# Texts as rows of a batch, cut and padded in one call of the core; included by _core.pyx.

cdef extern from "rows.hpp" namespace "fasttoken":
    cppclass RowText:
        string_view utf8
        const void* characters
        size_t count
        int width
        cbool ascii
    cppclass RowSample:
        int64_t first, second
    cppclass RowPiece:
        int sequence
        vector[int32_t] ids
        int64_t type, rest_type
    cppclass RowLayout "fasttoken::RowLayout":
        void push_back(const RowPiece&) except +
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
        Rows(const Core&, cbool, cbool) except +
        cbool encode(const vector[RowText]&, const vector[RowSample]&) except +raise_core nogil
        cbool cut(const RowLayout&, const RowLayout&, const RowCut&, const RowPadding&) except +raise_core nogil
        size_t count()
        size_t length(size_t)
        size_t without_padding(size_t)
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
    inline std::unique_ptr<fasttoken::Rows> new_rows(const fasttoken::Core& core, bool parse_special, bool offsets) {
      return std::make_unique<fasttoken::Rows>(core, parse_special, offsets);
    }
    }  // namespace
    """
    RowColumn row_column(int) nogil
    unique_ptr[Rows] new_rows(const Core&, cbool, cbool) except +raise_core

cdef enum:
    OFFSETS = 4  # RowColumn::offsets
    COLUMNS = 5

cdef object _MOST_INT32 = (1 << 31) - 1
cdef dict _strategies = {"longest_first": 1, "only_first": 2, "only_second": 3}


@cython.final
cdef class RowFrames:
    """The tokens that a post-processor puts around one sequence, and around two."""

    cdef RowLayout single, pair
    cdef bint has_single, has_pair, trims_first
    cdef uint64_t added[2]

    def __cinit__(self, single, pair, added, bint trims_first):
        """single, pair: (sequence or -1, ids, type id, type id of a part that was cut off) of each piece in turn, or
        None. added: how many tokens truncation leaves room for. trims_first: offsets are trimmed before anything is
        put around a sequence."""
        self.has_single, self.has_pair, self.trims_first = single is not None, pair is not None, trims_first
        self.added[0], self.added[1] = added
        fill_layout(self.single, single or ())
        fill_layout(self.pair, pair or ())


cdef int fill_layout(RowLayout& layout, pieces) except -1:
    cdef RowPiece piece
    for sequence, ids, type, rest_type in pieces:
        piece.sequence, piece.ids, piece.type, piece.rest_type = sequence, ids, type, rest_type
        layout.push_back(piece)
    return 0


cdef int add_text(object text, vector[RowText]& texts, size_t* total) except -1:
    """False if it is no str."""
    cdef RowText row
    if not isinstance(text, str):
        return False
    row.count = PyUnicode_GET_LENGTH(text)
    row.ascii = PyUnicode_IS_COMPACT_ASCII(text)
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
        return 1 if add_text(given, texts, total) else -1
    if type(given) is not list and type(given) is not tuple:
        return -1
    for word in given:
        if not add_text(word, texts, total):
            return -1
        count += 1
    return count


cdef class RowCall:
    """Samples as rows, whose columns are taken out of it."""

    cdef CoreTokenizer core
    cdef unique_ptr[Rows] rows

    @staticmethod
    cdef RowCall made(CoreTokenizer core, RowFrames frames, list firsts, list seconds, truncation, padding,
                      cbool parse_special, cbool offsets, cbool keeps_rest, cbool wide):
        """None if another way has to be gone."""
        cdef RowCall self = RowCall.__new__(RowCall)
        cdef vector[RowText] texts
        cdef vector[RowSample] samples
        cdef RowSample sample
        cdef RowCut cut
        cdef RowPadding pad
        cdef size_t total = 0
        cdef Py_ssize_t i
        cdef cbool known = True
        if core is None or frames is None or (offsets and not frames.trims_first):
            return None
        if padding is not None and not wide and (padding.pad_id > _MOST_INT32 or padding.pad_type_id > _MOST_INT32):
            return None
        for i in range(len(firsts)):
            sample.first, sample.second = add_sequence(firsts[i], texts, &total), -1
            if sample.first < 0:
                return None
            if seconds is not None and seconds[i] is not None:
                sample.second = add_sequence(seconds[i], texts, &total)
                if sample.second < 0 or not frames.has_pair:
                    return None
            elif not frames.has_single:
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
            pad.left, pad.id, pad.type = padding.direction == "left", padding.pad_id, padding.pad_type_id
        self.core = core
        self.rows = new_rows(core.core[0], parse_special, offsets)
        if total < RELEASE_AT:
            known = (self.rows.get().encode(texts, samples)
                     and self.rows.get().cut(frames.single, frames.pair, cut, pad))
        else:
            with nogil:
                known = (self.rows.get().encode(texts, samples)
                         and self.rows.get().cut(frames.single, frames.pair, cut, pad))
        return self if known else None

    cdef cnp.ndarray array(self, int column, cbool wide):
        cdef Rows* rows = self.rows.get()
        cdef cnp.npy_intp[3] shape
        shape[0], shape[1], shape[2] = rows.count(), rows.longest(), 2
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
                out.append(pairs_of(flat.data() + 2 * at, n))
            else:
                out.append(self.core.list_of(flat.data() + at, n))
            at += n
        return out

    cdef list samples(self):
        cdef size_t i
        return [self.rows.get().sample(i) for i in range(self.rows.get().count())]
