# The kernels on numpy's arrays: one call checks sizes, reads addresses and strides, and runs the kernel. Part of
# cpu.pyx.
#
# A value is float32, or bfloat16, whose dtype is the structured one of two bytes (prelude/models/arrays.py).


cdef object _told(object x):
    """The part of an error that says what was given."""
    return f"{x.dtype} {list(x.shape)} with strides of {list(x.strides)} bytes"


cdef int _item(cnp.ndarray x) except -1:
    """Bytes of a value: 4 of float32, 2 of bfloat16."""
    cdef int kind = cnp.PyArray_TYPE(x)
    if kind == cnp.NPY_FLOAT32:
        return 4
    dtype = (<object> x).dtype
    if kind == cnp.NPY_VOID and dtype.itemsize == 2:
        return 2
    raise TypeError(f"the CPU kernels take float32 and bfloat16, not {dtype}")


cdef Type _type_of(cnp.ndarray x) except *:
    return Type.f32 if _item(x) == 4 else Type.bf16


cdef inline int64_t _width(cnp.ndarray x) noexcept:
    """Values of a row of a two-dimensional array, else 0."""
    return cnp.PyArray_DIM(x, 1) if cnp.PyArray_NDIM(x) == 2 else 0


cdef struct Rows:
    char* at
    int64_t count
    int64_t stride  # values from one row to the next
    Type type


cdef Rows _rows(cnp.ndarray x, int64_t width, str name, bint written=False) except *:
    """``x`` [count, width], the values of a row side by side; numpy gives an empty array strides of 0 at times."""
    cdef Rows rows
    cdef int item = _item(x)
    if cnp.PyArray_NDIM(x) != 2 or cnp.PyArray_DIM(x, 1) != width or cnp.PyArray_DIM(x, 0) and (
            cnp.PyArray_STRIDE(x, 1) != item or cnp.PyArray_STRIDE(x, 0) % item or not cnp.is_plain(x, written)):
        raise ValueError(f"{name}: rows of {width} values side by side are needed, not {_told(x)}"
                         f"{'' if cnp.is_plain(x, written) else ', which may not be written to'}")
    rows.at, rows.count = <char*> cnp.PyArray_DATA(x), cnp.PyArray_DIM(x, 0)
    rows.stride, rows.type = cnp.PyArray_STRIDE(x, 0) // item, Type.f32 if item == 4 else Type.bf16
    return rows


cdef Rows _heads(cnp.ndarray x, int64_t heads, int64_t width, str name, bint written=False) except *:
    """``x`` [count, heads, width], the heads of a token side by side. An empty one may have other heads: an empty pool
    has those of the model's first layer."""
    cdef Rows rows
    cdef int item = _item(x)
    if cnp.PyArray_NDIM(x) != 3 or cnp.PyArray_DIM(x, 0) and (
            cnp.PyArray_DIM(x, 1) != heads or cnp.PyArray_DIM(x, 2) != width or cnp.PyArray_STRIDE(x, 2) != item
            or cnp.PyArray_STRIDE(x, 1) != width * item or cnp.PyArray_STRIDE(x, 0) % item
            or not cnp.is_plain(x, written)):
        raise ValueError(f"{name}: tokens of {heads} heads of {width} values side by side are needed, not {_told(x)}")
    rows.at, rows.count = <char*> cnp.PyArray_DATA(x), cnp.PyArray_DIM(x, 0)
    rows.stride, rows.type = cnp.PyArray_STRIDE(x, 0) // item, Type.f32 if item == 4 else Type.bf16
    return rows


cdef const float* _factors(cnp.ndarray x, int64_t heads, int64_t width, str name="factors") except? NULL:
    """``width`` float32 values side by side, or [heads, width] of them where ``heads`` is not 0; NULL for None."""
    if x is None:
        return NULL
    cdef int dimensions = 2 if heads else 1
    if (cnp.PyArray_NDIM(x) != dimensions or cnp.PyArray_DIM(x, dimensions - 1) != width
            or heads and cnp.PyArray_DIM(x, 0) != heads or cnp.PyArray_TYPE(x) != cnp.NPY_FLOAT32
            or not cnp.PyArray_ISCARRAY_RO(x)):
        raise ValueError(f"{name}: float32 {[heads, width] if heads else [width]} without gaps is needed, not "
                         f"{_told(x)}")
    return <const float*> cnp.PyArray_DATA(x)


cdef const int64_t* _indices(cnp.ndarray x, int64_t rows, str name) except? NULL:
    """An index for each of ``rows`` rows."""
    if (cnp.PyArray_NDIM(x) != 1 or cnp.PyArray_DIM(x, 0) != rows or cnp.PyArray_TYPE(x) != cnp.NPY_INT64
            or not cnp.PyArray_ISCARRAY_RO(x)):
        raise ValueError(f"{name}: {rows} int64 indices side by side are needed, not {_told(x)}")
    return <const int64_t*> cnp.PyArray_DATA(x)


cdef const float* _turns(cnp.ndarray table, int64_t width) except? NULL:
    """A rope table [positions, width / 2] complex64."""
    if table is None:
        raise ValueError("heads that turn need a rope table and positions")
    if (cnp.PyArray_NDIM(table) != 2 or cnp.PyArray_DIM(table, 1) * 2 != width
            or cnp.PyArray_TYPE(table) != cnp.NPY_COMPLEX64 or not cnp.PyArray_ISCARRAY_RO(table)):
        raise ValueError(f"a rope table of complex64 [positions, {width} / 2] is needed, not {_told(table)}")
    return <const float*> cnp.PyArray_DATA(table)


cdef cnp.ndarray _float32_rows(int64_t rows, int64_t width):
    cdef cnp.npy_intp[2] shape
    shape[0], shape[1] = rows, width
    return cnp.new_array(2, shape, cnp.NPY_FLOAT32)


cdef _normed(cnp.ndarray x, float eps, cnp.ndarray gain, cnp.ndarray bias, cnp.ndarray out, bint centred):
    cdef NormArgs args
    cdef cbool done
    cdef int64_t width = _width(x)
    cdef Rows rows = _rows(x, width, "x"), made
    if out is None:
        out = _float32_rows(rows.count, width)
    elif cnp.PyArray_NDIM(out) == 2 and cnp.PyArray_DIM(out, 0) > rows.count:
        out = (<object> out)[:rows.count]
    made = _rows(out, width, "out", True)
    if made.count != rows.count or rows.type != Type.f32:
        raise ValueError(f"a norm of {_told(x)} into {_told(out)}")
    args.x, args.x_stride = <const float*> rows.at, rows.stride
    args.gain, args.bias = _factors(gain, 0, width, "gain"), _factors(bias, 0, width, "bias")
    args.out, args.out_stride, args.out_type = made.at, made.stride, made.type
    args.width, args.eps = width, eps
    cdef PyThreadState* state = _let_go(worth_releasing_gil(rows.count * width))
    done = norm(args, rows.count, centred)
    _take_back(state)
    check(done)
    return out


def rms_norm(cnp.ndarray x not None, float eps, cnp.ndarray gain, cnp.ndarray out=None):
    """RMSNorm over the rows of float32 ``x`` [T, width]. ``gain`` [width] is None where the next weight has it inside.
    The first T rows of ``out`` [T or more, width], float32 or bfloat16, take the result and are returned; without it
    they are new and float32. The values of a row lie side by side."""
    return _normed(x, eps, gain, None, out, False)


def layer_norm(cnp.ndarray x not None, float eps, cnp.ndarray gain, cnp.ndarray bias, cnp.ndarray out=None):
    """LayerNorm; see ``rms_norm`` for the arguments. ``bias`` [width] or None; ``out`` may be ``x``."""
    return _normed(x, eps, gain, bias, out, True)


def rotate(cnp.ndarray heads not None, cnp.ndarray gain, float eps, cnp.ndarray table not None,
           cnp.ndarray positions not None) -> None:
    """Norm per head and rotary embedding, in place: ``heads`` [T, heads, D] with the two halves of each head
    interleaved and heads side by side, ``gain`` [heads, D] float32 or None for models without that norm, ``table``
    [positions, D / 2] complex64, ``positions`` [T] int64, each below the table's length."""
    cdef RotateArgs args
    cdef cbool done
    if cnp.PyArray_NDIM(heads) != 3:
        raise ValueError(f"tokens of heads are needed, not {_told(heads)}")
    cdef int64_t count = cnp.PyArray_DIM(heads, 1), width = cnp.PyArray_DIM(heads, 2)
    cdef Rows rows = _heads(heads, count, width, "heads", True)
    args.in_, args.in_stride, args.out, args.out_stride = rows.at, rows.stride, rows.at, rows.stride
    args.type, args.heads, args.width, args.eps = rows.type, count, width, eps
    args.gain = _factors(gain, count, width, "gain")
    args.rope_table, args.positions = _turns(table, width), _indices(positions, rows.count, "positions")
    cdef PyThreadState* state = _let_go(worth_releasing_gil(rows.count * count * width))
    done = norm_rotate(kernels[0], args, rows.count, thread_count())
    _take_back(state)
    check(done)


def activate(cnp.ndarray x not None, int64_t inner, str kind not None, bint gated):
    """The activation of the first ``inner`` columns of ``x`` [T, inner], in its memory; where ``gated``, times the
    other half of ``x`` [T, 2 * inner]. A view of those columns is returned. ``kind`` is one of ``ACTIVATIONS``."""
    cdef ActivateArgs args
    cdef cbool done
    cdef Rows rows = _rows(x, (2 if gated else 1) * inner, "x", True)
    args.rows, args.stride, args.type, args.inner = rows.at, rows.stride, rows.type, inner
    args.kind, args.gated = <Activation> <int> ACTIVATIONS[kind], gated
    cdef PyThreadState* state = _let_go(worth_releasing_gil(2 * rows.count * inner))
    done = c_activate(kernels[0], args, rows.count, thread_count())
    _take_back(state)
    check(done)
    return (<object> x)[:, :inner] if gated else x


def write_pool(cnp.ndarray k not None, cnp.ndarray v not None, cnp.ndarray pool_k not None,
               cnp.ndarray pool_v not None, cnp.ndarray slots not None, cnp.ndarray tokens) -> None:
    """K and V [T, kv_heads, D] of ``tokens`` (all of them for None) into ``slots`` of the pool's [S, kv_heads, D].
    Indices are int64 and contiguous; slots are distinct."""
    cdef PoolRowsArgs args
    cdef cbool inside
    if cnp.PyArray_NDIM(pool_k) != 3 or not cnp.PyArray_ISCARRAY_RO(pool_k) or not cnp.PyArray_ISCARRAY_RO(pool_v):
        raise ValueError("a pool with gaps")
    cdef int64_t heads = cnp.PyArray_DIM(pool_k, 1), width = cnp.PyArray_DIM(pool_k, 2)
    cdef Rows keys = _heads(k, heads, width, "k"), values = _heads(v, heads, width, "v")
    cdef Rows to_k = _heads(pool_k, heads, width, "pool_k", True), to_v = _heads(pool_v, heads, width, "pool_v", True)
    cdef int64_t rows = cnp.PyArray_DIM(slots, 0) if cnp.PyArray_NDIM(slots) == 1 else 0
    if not keys.type == values.type == to_k.type == to_v.type or keys.count != values.count or to_k.count != to_v.count:
        raise ValueError(f"{_told(k)} and {_told(v)} into {_told(pool_k)} and {_told(pool_v)}")
    args.k, args.v, args.pool_k, args.pool_v = keys.at, values.at, to_k.at, to_v.at
    args.k_stride, args.v_stride, args.values, args.type = keys.stride, values.stride, heads * width, keys.type
    args.tokens = NULL
    if tokens is not None:
        args.tokens = _indices(tokens, rows, "tokens")
    args.slots = _indices(slots, rows, "slots")
    inside = all_below(args.slots, rows, to_k.count)
    inside = inside and (rows <= keys.count if tokens is None else all_below(args.tokens, rows, keys.count))
    if not inside:
        raise ValueError(f"{rows} rows go from {keys.count} tokens to {to_k.count} slots, and one lies outside")
    cdef PyThreadState* state = _let_go(worth_releasing_gil(2 * rows * args.values))
    c_write_pool(args, rows, thread_count())
    _take_back(state)


def add_rows(cnp.ndarray x not None, cnp.ndarray totals not None) -> None:
    """Adds the rows of ``x`` [n, width] float32 to ``totals`` [width] float64, one after the other."""
    cdef int64_t width = _width(x), row, i
    cdef Rows rows = _rows(x, width, "x")
    if (rows.type != Type.f32 or cnp.PyArray_TYPE(totals) != cnp.NPY_FLOAT64 or cnp.PyArray_NDIM(totals) != 1
            or cnp.PyArray_DIM(totals, 0) != width or not cnp.PyArray_IS_C_CONTIGUOUS(totals)
            or not cnp.is_plain(totals, True)):
        raise ValueError(f"sums of {_told(x)} in {_told(totals)}")
    cdef const float* values = <const float*> rows.at
    cdef double* sums = <double*> cnp.PyArray_DATA(totals)
    with nogil:
        for row in range(rows.count):
            for i in range(width):
                sums[i] += values[row * rows.stride + i]


def exp_sums(cnp.ndarray values not None):
    """Of each row of float32 ``values`` [n, width]: its largest value [n] float32, and the sum of the exponentials of
    its values relative to that [n] float64. A row is summed by one thread."""
    cdef int64_t width = _width(values)
    cdef Rows rows = _rows(values, width, "values")
    cdef cnp.npy_intp[1] shape
    cdef cnp.ndarray most, totals
    if rows.type != Type.f32:
        raise ValueError(f"sums of {_told(values)}")
    shape[0] = rows.count
    most, totals = cnp.new_array(1, shape, cnp.NPY_FLOAT32), cnp.new_array(1, shape, cnp.NPY_FLOAT64)
    with nogil:
        c_exp_sums(kernels[0], <const float*> rows.at, rows.stride, rows.count, width,
                   <float*> cnp.PyArray_DATA(most), <double*> cnp.PyArray_DATA(totals), thread_count())
    return most, totals
