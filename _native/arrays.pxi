# Arrays in and out: int32 without a copy where it can be, checked where it cannot. Part of core.pyx.

cdef cnp.ndarray _int32(object x, str name):
    """``x`` as a contiguous int32 array: itself if it is one, else a view or a checked copy."""
    cdef cnp.ndarray a
    if cnp.PyArray_Check(x):
        a = <cnp.ndarray>x
        if (cnp.PyArray_TYPE(a) == cnp.NPY_INT32 and cnp.PyArray_NDIM(a) == 1
                and cnp.PyArray_ISCARRAY_RO(a)):
            return a
    if isinstance(x, (list, tuple)):
        return _int32_sequence(x, name)
    return _int32_slow(x, name)


cdef cnp.ndarray _int32_sequence(object x, str name):
    """A list or tuple of Python ints, checked and copied in one loop; anything else in it takes the slow way."""
    cdef Py_ssize_t i, n = PySequence_Fast_GET_SIZE(x)
    cdef PyObject** items = PySequence_Fast_ITEMS(x)
    cdef cnp.ndarray out = _new_int32(n)
    cdef int32_t* p = _data(out)
    try:
        for i in range(n):
            if not PyLong_CheckExact(<object>items[i]):
                if isinstance(<object>items[i], bool):
                    raise TypeError(f"{name}: a bool at {i} is not a number")
                return _int32_slow(np.array(x), name)
            p[i] = <int32_t><object>items[i]
    except OverflowError:
        raise ValueError(f"{name}: {x[i]} at {i} does not fit in int32") from None
    return out


cdef Py_ssize_t _length_of_ids(object x) except? -2:
    """Of a list or tuple, or of a flat array of int32 or int64; -1 for anything else."""
    cdef cnp.ndarray a
    if cnp.PyArray_Check(x):
        a = <cnp.ndarray>x
        if (cnp.PyArray_NDIM(a) == 1 and cnp.PyArray_ISCARRAY_RO(a)
                and cnp.PyArray_TYPE(a) in (cnp.NPY_INT32, cnp.NPY_INT64)):
            return _len(a)
        return -1
    return PySequence_Fast_GET_SIZE(x) if isinstance(x, (list, tuple)) else -1


cdef cbool _copy_ids(object x, Py_ssize_t n, int64_t limit, int32_t* out) noexcept:
    if cnp.PyArray_Check(x):
        if cnp.PyArray_TYPE(<cnp.ndarray>x) == cnp.NPY_INT64:
            return c_copy_below(<const int64_t*>cnp.PyArray_DATA(<cnp.ndarray>x), n, limit, out)
        return c_copy_below(_data(<cnp.ndarray>x), n, limit, out)
    return _copy_numbers(PySequence_Fast_ITEMS(x), n, limit, out)


cdef cbool _copy_numbers(PyObject** items, Py_ssize_t n, int64_t limit, int32_t* out) noexcept:
    """False where one of the items is no plain int, or not in [0, limit)."""
    cdef Py_ssize_t i
    cdef int too_large = 0
    cdef long long value
    cdef int64_t most = min(limit, INT32_MAX + <int64_t>1)
    for i in range(n):
        if not PyLong_CheckExact(<object>items[i]):
            return False
        value = PyLong_AsLongLongAndOverflow(<object>items[i], &too_large)
        if too_large != 0 or not 0 <= value < most:
            return False
        out[i] = <int32_t>value
    return True


def ids_below(object x, int64_t limit):
    """A new int32 array of a list or tuple of plain ints, or of a flat array of int32 or int64, all in [0, limit);
    None where anything else is in it."""
    cdef Py_ssize_t n = _length_of_ids(x)
    if n < 0:
        return None
    cdef cnp.ndarray out = _new_int32(n)
    # Making an array may run a finaliser, which may change the list.
    return out if _length_of_ids(x) == n and _copy_ids(x, n, limit, _data(out)) else None


def ids_once(object x, int64_t limit):
    """The ids of ``ids_below``, each once and in ascending order; also None where there are more than ``limit``."""
    if _length_of_ids(x) > limit:
        return None
    cdef object ids = ids_below(x, limit)
    if ids is None:
        return None
    cdef int64_t left = c_sort_once(_data(ids), _len(ids), limit)
    return ids if left == _len(ids) else ids[:left]


cdef class SameIds:
    """``ids_once`` for one caller, whose lists are often the same as the time before.

    A list that holds the very integers of the list before is not read again: integers cannot change, and since they
    are held here, no other object has their address. They are held from the second of two lists on that begin and
    end alike, so that lists which differ each time cost nothing more. The array of such lists is one array, which is
    not to be written."""
    cdef int64_t _limit
    cdef tuple _held
    cdef object _ids
    cdef PyObject* _first  # of the list before: compared, never followed
    cdef PyObject* _last
    cdef Py_ssize_t _count

    def __cinit__(self, int64_t limit):
        self._limit = limit
        self._held = ()
        self._count = -1

    def of(self, object x):
        cdef Py_ssize_t n
        cdef PyObject** items
        cdef tuple held
        if not isinstance(x, (list, tuple)):
            return ids_once(x, self._limit)
        n, items = PySequence_Fast_GET_SIZE(x), PySequence_Fast_ITEMS(x)
        if n == 0:
            return ids_once(x, self._limit)
        if n == len(self._held) and memcmp(items, PySequence_Fast_ITEMS(self._held), n * sizeof(PyObject*)) == 0:
            return self._ids
        if n != self._count or items[0] != self._first or items[n - 1] != self._last:
            self._count, self._first, self._last = n, items[0], items[n - 1]
            return ids_once(x, self._limit)
        # A copy: a finaliser may change the list while its items are read.
        held = PyList_AsTuple(x) if isinstance(x, list) else PyTuple_GetSlice(x, 0, n)
        ids = ids_once(held, self._limit)
        if ids is not None:
            self._held, self._ids = held, ids
        return ids


def join_ids(*parts):
    """Arrays of token ids end to end, in a new one."""
    cdef cnp.ndarray one, out
    cdef int64_t n = 0
    cdef int32_t* p
    cdef list arrays = [_int32(part, "ids") for part in parts]
    for one in arrays:
        n += _len(one)
    out = _new_int32(n)
    p = _data(out)
    for one in arrays:
        if _len(one):
            memcpy(p, _data(one), _len(one) * sizeof(int32_t))
        p += _len(one)
    return out


def build_tree(segments, joins=(), before=()):
    """(token ids, positions, starts, parents) of a forest, from (parent, token ids) of each segment, parents first;
    -1 for a root. Positions go on from the parent's last one. A segment in ``joins`` stands behind the longest of its
    elder siblings. The arrays of ``before`` stand before the first segment's ids."""
    cdef Py_ssize_t i, k, n = len(segments)
    cdef int64_t at = 0, first, total = 0
    cdef cnp.ndarray starts = _new_int32(n + 1), parents = _new_int32(n), ids, positions, own
    cdef vector[int64_t] ends
    cdef list owned = []
    _data(starts)[0] = 0
    for i in range(n):
        parent, tokens = segments[i]
        if not -1 <= parent < i:
            raise ValueError(f"segment {i} has the parent {parent}")
        own = _int32(tokens, "token_ids") if i or not before else join_ids(*before, tokens)
        owned.append(own)
        total += _len(own)
        _data(starts)[i + 1], _data(parents)[i] = <int32_t>total, <int32_t>parent
    ids, positions = _new_int32(total), _new_int32(total)
    for i in range(n):
        own, k = owned[i], _data(parents)[i]
        first = ends[k] if k >= 0 else 0
        if joins and i in joins:
            for k in range(i):
                if _data(parents)[k] == _data(parents)[i]:
                    first = max(first, ends[k])
        for k in range(_len(own)):
            _data(ids)[at] = _data(own)[k]
            _data(positions)[at] = <int32_t>(first + k)
            at += 1
        ends.push_back(first + _len(own))
    return ids, positions, starts, parents


cdef cnp.ndarray _int32_slow(object x, str name):
    a = np.asarray(x)
    if a.ndim != 1:
        raise TypeError(f"{name}: a flat array of int32 is needed, not {a.ndim} dimensions")
    if a.dtype.kind not in "iu":
        raise TypeError(f"{name}: int32 is needed, not {a.dtype}")
    if a.dtype != np.int32:
        if a.size and (a.max() > 2147483647 or a.min() < -2147483648):
            raise ValueError(f"{name}: a value does not fit in int32")
        a = a.astype(np.int32)
    return np.require(a, np.int32, "CA")  # aligned: it is read as int32 through a pointer


cdef inline int32_t* _data(cnp.ndarray a) noexcept:
    return <int32_t*>cnp.PyArray_DATA(a)


cdef inline int64_t _len(cnp.ndarray a) noexcept:
    return cnp.PyArray_DIM(a, 0)


cdef inline cnp.ndarray _new_int32(cnp.npy_intp n):
    return <cnp.ndarray>cnp.new_array(1, &n, cnp.NPY_INT32)


cdef int64_t _count(int64_t n, str name) except -1:
    if n < 0:
        raise ValueError(f"{name}: {n} is negative")
    return n
