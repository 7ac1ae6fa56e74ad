# The kernels on tensors: one call checks sizes, reads addresses and strides, and runs the kernel. Part of cpu.pyx.
#
# A tensor is any object with ``shape``, ``stride()``, ``dtype`` and ``data_ptr()``: torch is not imported here.

from cpython.object cimport PyObject


cdef extern from "Python.h":
    Py_ssize_t PyTuple_GET_SIZE(object sizes)
    PyObject* PyTuple_GET_ITEM(object sizes, Py_ssize_t at)  # borrowed


cdef object _float32 = object(), _bfloat16 = object()  # torch's types, once they are known
cdef object _int64 = object(), _complex64 = object()
cdef object _empty = None


def know_tensors(float32, bfloat16, int64, complex64, empty) -> None:
    """The types of tensors that kernels take; ``empty(rows, width, dtype=)`` makes a tensor."""
    global _float32, _bfloat16, _int64, _complex64, _empty
    _float32, _bfloat16, _int64, _complex64 = float32, bfloat16, int64, complex64
    _empty = empty


cdef int64_t _entry(object sizes, Py_ssize_t at) except? -1:
    """A number of a shape or of strides."""
    if not isinstance(sizes, tuple) or at >= PyTuple_GET_SIZE(sizes):
        raise ValueError(f"a tensor of more than {at} dimensions is needed, not one of sizes {sizes}")
    cdef PyObject* number = PyTuple_GET_ITEM(sizes, at)
    if number == NULL:
        raise MemoryError()  # torch makes a shape with null pointers in it where its integers find no memory
    return <int64_t><object>number


cdef bint _type_is_half(object dtype) except -1:
    if dtype is _float32:
        return False
    if dtype is _bfloat16:
        return True
    raise TypeError(f"the CPU kernels take float32 and bfloat16, not {dtype}")


cdef int _are_rows(object size, object strides) except -1:
    """Checks that a tensor has two dimensions and that the values of each row lie side by side."""
    if _entry(strides, 1) != 1 or PyTuple_GET_SIZE(strides) != 2:
        raise ValueError(f"rows of values side by side are needed, not sizes {list(size)} of strides {strides}")
    return 0


cdef uintptr_t _factors_at(object x, int64_t width) except? 0:
    """The address of ``width`` float32 values side by side, or 0 for None."""
    cdef object size
    if x is None:
        return 0
    size = x.shape
    if (_entry(size, 0) != width or PyTuple_GET_SIZE(size) != 1 or x.dtype is not _float32
            or _entry(x.stride(), 0) != 1):
        raise ValueError(f"{width} float32 values side by side are needed, not {x.dtype} {list(size)} of strides "
                         f"{x.stride()}")
    return x.data_ptr()


cdef uintptr_t _gain_at(object gain, int64_t heads, int64_t width) except? 0:
    """The address of a factor [heads, width] float32 for each value of heads side by side, or 0 for None."""
    cdef object size
    if gain is None:
        return 0
    size = gain.shape
    if (_entry(size, 0) != heads or _entry(size, 1) != width or PyTuple_GET_SIZE(size) != 2
            or gain.dtype is not _float32 or not gain.is_contiguous()):
        raise ValueError(f"float32 factors [{heads}, {width}] without gaps are needed, not {gain.dtype} {list(size)} "
                         f"of strides {gain.stride()}")
    return gain.data_ptr()


cdef uintptr_t _indices_at(object x, int64_t rows) except? 0:
    """The address of an index for each of ``rows`` rows: int64 values side by side."""
    if _entry(x.shape, 0) != rows or x.dtype is not _int64 or not x.is_contiguous():
        raise ValueError(f"{rows} int64 indices side by side are needed, not {x.dtype} {list(x.shape)} of strides "
                         f"{x.stride()}")
    return x.data_ptr()


cdef uintptr_t _turns_at(object table, int64_t width) except? 0:
    """The address of a rope table [positions, width / 2] complex64 without gaps."""
    if _entry(table.shape, 1) * 2 != width or table.dtype is not _complex64 or not table.is_contiguous():
        raise ValueError(f"a rope table of complex64 [positions, {width} / 2] is needed, not {table.dtype} "
                         f"{list(table.shape)} of strides {table.stride()}")
    return table.data_ptr()


def is_half(x) -> bool:
    """Whether ``x`` is bfloat16; else it is float32, or ``TypeError``."""
    return _type_is_half(x.dtype)


cdef _normed(str name, x, float eps, gain, dtype, out, bint centred, bias):
    cdef object size = x.shape, strides = x.stride(), of_out, out_strides
    cdef int64_t rows = _entry(size, 0), width = _entry(size, 1)
    if out is None:
        out = _empty(rows, width, dtype=dtype)
    elif _entry(out.shape, 0) != rows:
        out = out[:rows]
    of_out = out.shape
    if (of_out != size or x.dtype is not _float32 or out.dtype is not dtype
            or (dtype is not _float32 and dtype is not _bfloat16)):
        raise ValueError(f"{name} of {x.dtype} {list(size)} into {out.dtype} {list(of_out)}")
    out_strides = out.stride()
    _are_rows(size, strides)
    _are_rows(of_out, out_strides)
    norm_rows(<uintptr_t>x.data_ptr(), _entry(strides, 0), _factors_at(gain, width), <uintptr_t>out.data_ptr(),
              _entry(out_strides, 0), dtype is _bfloat16, rows, width, eps, centred, _factors_at(bias, width))
    return out


def norm_tensor(x, float eps, gain, dtype, out=None):
    """RMSNorm over the rows of float32 ``x`` [T, width]. ``gain`` [width] is None where the next weight has it inside.
    ``out`` [T or more, width] of ``dtype`` takes the result; its first T rows are returned. The values of a row lie
    side by side."""
    return _normed("RMSNorm", x, eps, gain, dtype, out, False, None)


def layer_norm_tensor(x, float eps, gain, bias, dtype, out=None):
    """LayerNorm; see ``norm_tensor`` for the arguments. ``bias`` [width] or None; ``out`` may be ``x``."""
    return _normed("LayerNorm", x, eps, gain, dtype, out, True, bias)


def rotate_tensor(heads, gain, float eps, table, positions) -> None:
    """Norm per head and rotary embedding, in place: ``heads`` [T, heads, D] with the two halves of each head
    interleaved and heads side by side, ``gain`` [heads, D] float32 or None for models without that norm, ``table``
    [positions, D / 2] complex64, ``positions`` [T] int64, each below the table's length."""
    cdef object size = heads.shape, strides = heads.stride()
    cdef int64_t rows = _entry(size, 0), count = _entry(size, 1), width = _entry(size, 2), stride = _entry(strides, 0)
    cdef uintptr_t at
    if _entry(strides, 1) != width or _entry(strides, 2) != 1:
        raise ValueError(f"heads of a token are not side by side: strides {strides}")
    at = heads.data_ptr()
    rotate_rows(at, stride, at, stride, _type_is_half(heads.dtype), _gain_at(gain, count, width), rows, count, width,
                eps, _turns_at(table, width), _indices_at(positions, rows))


def activate_tensor(x, int64_t inner, kind, bint gated):
    """The activation of the first ``inner`` columns of ``x`` [T, inner], in its memory; where ``gated``, times the
    other half of ``x`` [T, 2 * inner]. A view of those columns is returned."""
    cdef object size = x.shape, strides = x.stride()
    cdef int64_t rows = _entry(size, 0)
    if _entry(size, 1) != (2 if gated else 1) * inner:
        raise ValueError(f"an activation of {inner} values in {list(size)}")
    _are_rows(size, strides)
    activate_rows(<uintptr_t>x.data_ptr(), _entry(strides, 0), _type_is_half(x.dtype), rows, inner, ACTIVATIONS[kind],
                  gated)
    return x.narrow(1, 0, inner) if gated else x


def write_pool_tensors(k, v, pool_k, pool_v, slots, tokens) -> None:
    """K and V [T, kv_heads, D] of ``tokens`` (all of them for None) into ``slots`` of the pool's [S, kv_heads, D].
    Indices are int64 and contiguous; slots are distinct."""
    cdef object pool_size = pool_k.shape, dtype = pool_k.dtype, of_k = k.shape, of_v = v.shape
    cdef int64_t places = _entry(pool_size, 0), heads = _entry(pool_size, 1), width = _entry(pool_size, 2)
    cdef int64_t count = _entry(of_k, 0), values = heads * width, rows = _entry(slots.shape, 0)
    for x in (k, v):
        size, strides = x.shape, x.stride()
        if (x.dtype is not dtype or len(size) != 3 or _entry(size, 0) != count or _entry(size, 1) != heads
                or _entry(size, 2) != width or _entry(strides, 1) != width or _entry(strides, 2) != 1):
            raise ValueError(f"{x.dtype} {list(size)} of strides {strides}, with {count} keys, into {dtype} {values} "
                             "a slot")
    if (not pool_k.is_contiguous() or not pool_v.is_contiguous() or pool_v.shape != pool_size
            or pool_v.dtype is not dtype):
        raise ValueError("a pool with gaps, or two of different sizes or types")
    write_pool_rows(<uintptr_t>k.data_ptr(), _entry(k.stride(), 0), <uintptr_t>v.data_ptr(), _entry(v.stride(), 0),
                    <uintptr_t>pool_k.data_ptr(), <uintptr_t>pool_v.data_ptr(), values, count, places,
                    0 if tokens is None else _indices_at(tokens, rows), _indices_at(slots, rows), rows,
                    _type_is_half(dtype))
