# Decoding id by id: a stream of the core, and the steps of DecodeStream; included by _core.pyx.

@cython.final
cdef class CoreStream:
    cdef Stream* stream
    cdef CoreTokenizer tokenizer

    def __cinit__(self, CoreTokenizer tokenizer not None, ids=None, bint skip_special_tokens=False):
        cdef vector[uint32_t] column
        if ids is not None:
            ids_of(ids, column)
        self.tokenizer = tokenizer
        self.stream = new Stream(tokenizer.core, column, skip_special_tokens)

    cdef object advance(self, const vector[uint32_t]& ids):
        cdef string out
        return to_str(out) if self.stream.step(ids.data(), ids.size(), out) else None

    cdef object step_small(self, uint32_t id):
        cdef string_view whole
        cdef string out
        if self.stream.step_whole(id, whole):
            return PyUnicode_DecodeUTF8(whole.data(), whole.size(), "strict")
        return to_str(out) if self.stream.step(&id, 1, out) else None

    def step(self, id):
        cdef vector[uint32_t] column
        cdef int64_t small = small_int(<PyObject*> id)
        if small >= 0:
            return self.step_small(<uint32_t> small)
        ids_of((id,), column)
        return self.advance(column)

    def step_many(self, ids):
        cdef vector[uint32_t] column
        ids_of(ids, column)
        return self.advance(column)

    def __dealloc__(self):
        del self.stream

    def finish(self):
        return to_str(self.stream.finish())

    def copy(self):
        cdef CoreStream other = CoreStream.__new__(CoreStream, self.tokenizer)
        del other.stream
        other.stream = NULL
        other.stream = new Stream(self.stream[0])
        return other


cdef class StreamEntry:
    """The base of DecodeStream: its steps over a native core take no Python line."""
    cdef CoreStream native  # None before the first step, and over the reference backend
    cdef object owner  # the tokenizer of the first step

    def _set_entry(self, owner, native):
        self.owner = owner
        self.native = native if isinstance(native, CoreStream) else None

    def step(self, tokenizer, id):
        """The text that this id, or these ids, complete; None while a character is open."""
        cdef int64_t small
        if self.native is not None and self.owner is tokenizer:
            small = small_int(<PyObject*> id)
            if small >= 0:
                return self.native.step_small(<uint32_t> small)
        return self._step_general(tokenizer, id)
