# Requests of one setting, made together from their token ids. Part of core.pyx.

from types import GenericAlias as _GenericAlias


cdef int64_t _READER_BYTES = 300  # of a reader of an entry: its key, its entry and their places in a dict


@cython.final
cdef class Memo:
    """A bounded cache that needs no lock: least-recently-used in two generations.

        young   entries that were used lately; when it is full it becomes the old one
        old     the generation before; a hit moves the entry back to the young one

    At most ``capacity`` stays alive, half of it in each generation, in units of the entries' weights. An entry that
    is heavier than half of it is not kept. Only single dict operations are used, so threads that race lose an entry
    at worst and compute it again.

    ``get_for`` and ``put_for`` keep one value for all readers, and find it for those alone that put it themselves:
    each computes it once, as if the others were not there. A reader is a string or None."""

    cdef dict young, old
    cdef int64_t half, held, before, serial

    __class_getitem__ = classmethod(_GenericAlias)

    def __cinit__(self, int64_t capacity):
        self.half, self.young, self.old = capacity // 2, {}, {}

    @property
    def weight(self) -> int:
        """Of all entries."""
        return self.held + self.before

    cpdef get(self, key):
        cdef tuple entry = self.find(key)
        return None if entry is None else entry[0]

    cpdef put(self, key, value, int64_t weight=1):
        self.keep(key, (value, weight, 0))

    cpdef get_for(self, key, reader):
        cdef tuple entry = self.find(key)
        return None if entry is None or self.find((reader, entry[2])) is None else entry[0]

    cpdef put_for(self, key, reader, value, int64_t weight):
        """The value that is kept: that of another reader, or this one."""
        cdef tuple entry = self.find(key)
        cdef int64_t own = _READER_BYTES + (0 if reader is None else 4 * len(reader))
        if entry is None:
            self.serial += 1
            entry = (value, weight, self.serial)
            if not self.keep(key, entry):
                return value
        self.keep((reader, entry[2]), (True, own, 0))
        return entry[0]

    cdef tuple find(self, key):
        # A key's own __hash__ and __eq__ may run: they, or another thread then, may replace both generations.
        cdef dict generation = self.young
        cdef tuple entry = generation.get(key)
        if entry is None:
            generation = self.old
            entry = generation.get(key)
            if entry is not None:
                self.keep(key, entry)
        return entry

    cdef bint keep(self, key, tuple entry) except -1:
        cdef int64_t weight = entry[1]
        if weight > self.half:
            return False
        if self.held + weight > self.half:
            self.old, self.young, self.before, self.held = self.young, {}, self.held, 0
        self.held += weight
        cdef dict generation = self.young  # a reference of this call's own, as in find()
        generation[key] = entry
        return True

    def __len__(self) -> int:
        return len(self.young) + len(self.old)


@cython.final
cdef class Alike:
    """Finds neighbours in a list of tasks that say the same: instances of ``kind``, a dataclass of slots, whose
    fields are the same objects, but for the first field."""

    cdef type kind
    cdef vector[Py_ssize_t] offsets

    def __cinit__(self, type kind not None):
        self.kind = kind
        self.offsets = _slot_offsets(kind)

    def end(self, list tasks not None, Py_ssize_t first) -> int:
        """Where the run of tasks ends that begins with ``tasks[first]``, which is a ``kind``."""
        return self.find_end(tasks, first)

    cdef Py_ssize_t find_end(self, list tasks, Py_ssize_t first) except -1:
        cdef Py_ssize_t at = first + 1, n = len(tasks)
        cdef size_t field
        if not 0 <= first < n or type(tasks[first]) is not self.kind:
            raise ValueError(f"tasks[{first}] is not a {self.kind.__name__}")
        cdef object one = tasks[first], other
        while at < n:
            other = tasks[at]
            if type(other) is not self.kind:
                return at
            for field in range(1, self.offsets.size()):
                if member_of(<PyObject*>one, self.offsets[field]) != member_of(<PyObject*>other, self.offsets[field]):
                    return at
            at += 1
        return at


def runs_of(list tasks not None, dict alike not None) -> list:
    """``tasks`` cut into runs that are prepared together. ``alike`` has the ``Alike`` of a class; a task of any other
    class is a run of its own."""
    cdef Py_ssize_t at = 0, end, n = len(tasks)
    cdef list runs = []
    cdef object same
    while at < n:
        same = alike.get(type(tasks[at]))
        end = at + 1 if same is None else (<Alike?>same).find_end(tasks, at)
        runs.append(tasks[at:end])  # a copy, since another thread may change the caller's list
        at = end
    return runs


@cython.final
cdef class PromptMould:
    """The shared part of requests that differ in their prompt, and the makers of the engine's objects.

        tokens of a request   head | its own ids | foot | tail       the first three are its state

    ``tail`` is a tree behind an empty state: (token ids, positions, starts, parents); its first segment continues the
    state's. ``back``: how many tokens before the end of the state the readout's rows count from. A state has
    ``least`` to ``most`` tokens. ``shape(n)`` are positions and starts of a prompt of n tokens without branches.
    ``common`` are the fields of ``Prepared`` between the tree and the salt; ``admitted_fields`` those of
    ``Admitted`` after the first."""

    cdef Maker tree, prepared, admitted
    cdef object shape
    cdef cnp.ndarray head, foot, tail, positions, starts, parents
    cdef tuple common, admitted_fields
    cdef int64_t back, least, most

    def __cinit__(self, tuple makers not None, shape, head, foot, tuple tail not None, tuple common not None,
                 tuple admitted_fields not None, *, int64_t back, int64_t least, int64_t most):
        tree, prepared, admitted = makers
        self.tree, self.prepared, self.admitted = <Maker?>tree, <Maker?>prepared, <Maker?>admitted
        self.shape, self.common, self.admitted_fields = shape, common, admitted_fields
        self.head, self.foot = _int32(head, "head"), _int32(foot, "foot")
        ids, positions, starts, parents = tail
        self.tail, self.positions = _int32(ids, "tail"), _int32(positions, "positions")
        self.starts, self.parents = _int32(starts, "starts"), _int32(parents, "parents")
        if (_len(self.positions) != _len(self.tail) or _len(self.parents) < 1
                or _len(self.starts) != _len(self.parents) + 1):
            raise ValueError(f"{_len(self.parents)} segments, {_len(self.starts)} starts and {_len(self.positions)} "
                             f"positions for {_len(self.tail)} tokens")
        self.back, self.least, self.most = back, least, most

    cpdef tuple make(self, list prompts, int64_t id_limit, double tokenize_ms, salt, finish=None):
        """An ``Admitted`` for each prompt: an int32 array, or an argument of ``ids_below``. None for a prompt that is
        anything else, has an id that is not below ``id_limit``, or makes a state of another length. And whether there
        is none of these. ``finish``: the first of ``admitted_fields``, where it is the call's own."""
        cdef list out = []
        cdef cnp.ndarray ids
        cdef bint whole = True
        cdef tuple fields = self.admitted_fields if finish is None else (finish, *self.admitted_fields[1:])
        for prompt in prompts:
            ids = self.tokens(prompt, id_limit)
            whole = whole and ids is not None
            out.append(None if ids is None else self.admit(ids, tokenize_ms, salt, fields))
        return out, whole

    cdef cnp.ndarray tokens(self, object prompt, int64_t id_limit):
        """head, the prompt's ids, foot and tail."""
        cdef Py_ssize_t n = _length_of_ids(prompt)
        cdef int64_t around = _len(self.head) + _len(self.foot)
        if n < 0 or not self.least <= n + around <= self.most:
            return None
        cdef cnp.ndarray out = _new_int32(n + around + _len(self.tail))
        cdef int32_t* to = _data(out)
        # Making an array may run a finaliser, which may change a list.
        if _length_of_ids(prompt) != n or not _copy_ids(prompt, n, id_limit, to + _len(self.head)):
            return None
        _copy(to, self.head)
        _copy(to + _len(self.head) + n, self.foot)
        _copy(to + n + around, self.tail)
        return out

    cdef object admit(self, cnp.ndarray ids, double tokenize_ms, salt, tuple fields):
        cdef int64_t state = _len(ids) - _len(self.tail)
        cdef object positions, starts
        if _len(self.parents) == 1:
            positions, starts = self.shape(_len(ids))
        else:
            positions, starts = _grown(state, self.positions, self.starts)
        tree = self.tree.make((ids, positions, starts, self.parents))
        prepared = self.prepared.make((tree, *self.common, salt, 0, tokenize_ms, state - self.back))
        return self.admitted.make((prepared, *fields))


cdef inline void _copy(int32_t* to, cnp.ndarray ids) noexcept:
    if _len(ids):
        memcpy(to, _data(ids), _len(ids) * sizeof(int32_t))


cpdef tuple scope_of(task, default_cache):
    """The texts that a task may share with others: (its salt or None, whether nothing of it is kept, whether trusted
    text that it brings is its own). Its fields are not checked so far: they may be any objects."""
    cdef object salt = getattr(task, "salt", None), cache = getattr(task, "cache", None)
    cdef bint alone
    if not isinstance(cache, str) or cache == "auto":  # "auto" stands for the engine's default
        cache = default_cache
    alone = cache == "never"
    if not isinstance(salt, str):
        salt = None
    if salt is None and not alone:
        return salt, alone, False
    return salt, alone, getattr(task, "template", None) is not None or getattr(task, "recipe", None) is not None
