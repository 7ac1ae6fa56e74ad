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


def ids_below(object x, int64_t limit):
    """A new int32 array of a list or tuple of plain ints, or of a flat int32 array, all in [0, limit); None where
    anything else is in it."""
    cdef Py_ssize_t i, n
    cdef PyObject** items
    cdef cnp.ndarray out
    cdef int32_t* p
    cdef const int32_t* given
    cdef bint fine = True
    if cnp.PyArray_Check(x):
        out = <cnp.ndarray>x
        if cnp.PyArray_TYPE(out) != cnp.NPY_INT32 or cnp.PyArray_NDIM(out) != 1 or not cnp.PyArray_ISCARRAY_RO(out):
            return None
        given, n = _data(out), _len(out)
        out = _new_int32(n)
        p = _data(out)
        for i in range(n):
            p[i] = given[i]
            fine = fine & (0 <= p[i]) & (p[i] < limit)
        return out if fine else None
    if not isinstance(x, (list, tuple)):
        return None
    n = PySequence_Fast_GET_SIZE(x)
    items = PySequence_Fast_ITEMS(x)
    out = _new_int32(n)
    p = _data(out)
    cdef int overflow = 0
    cdef long long value
    for i in range(n):
        if not PyLong_CheckExact(<object>items[i]):
            return None
        value = PyLong_AsLongLongAndOverflow(<object>items[i], &overflow)
        if overflow or value < 0 or value >= limit or value > 2147483647:
            return None
        p[i] = <int32_t>value
    return out


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
    return np.ascontiguousarray(a)


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


cdef cnp.ndarray _indptr(object x, str name, int64_t limit):
    """Row boundaries: int32, from 0 up to ``limit``, never falling."""
    cdef cnp.ndarray a = _int32(x, name)
    cdef int32_t* p = _data(a)
    cdef int64_t i, n = _len(a)
    cdef int32_t before = 0
    if n < 1 or p[0] != 0:
        raise ValueError(f"{name}: must start with 0")
    for i in range(1, n):
        if p[i] < before:
            raise ValueError(f"{name}: falls from {before} to {p[i]} at {i}")
        before = p[i]
    if before > limit:
        raise ValueError(f"{name}: ends at {before}, past the {limit} values given")
    return a


cdef object _rows(object x, str name, int64_t rows, object dtype):
    """A per-row argument: one number for all rows, or an array of one a row."""
    if isinstance(x, (int, np.integer)):
        return np.full(rows, x, dtype)
    a = np.ascontiguousarray(x, dtype)
    if a.ndim != 1 or a.shape[0] != rows:
        raise ValueError(f"{name}: one value or {rows} are needed, not shape {a.shape}")
    return a
