# Recurrent layers over the forest of a step; the drawing is in include/prelude/cpu/recurrent.hpp.


cdef extern from "prelude/cpu/types.hpp" namespace "prelude::cpu" nogil:
    cdef struct ConvolveArgs:
        const void* x
        void* out
        const void* factor
        const float* weight
        const float* bias
        float* windows
        int64_t x_stride
        int64_t out_stride
        int64_t state_stride
        int64_t channels
        int64_t kernel
        Type type
        Type out_type
        cbool silu

    cdef struct DeltaShape:
        int64_t key_heads
        int64_t value_heads
        int64_t key_width
        int64_t value_width
        int64_t decays()
        int64_t row()

    cdef struct DeltaInputArgs:
        ConvolveArgs conv
        const void* gates
        const float* rate
        const float* offset
        DeltaShape shape

    cdef struct DeltaArgs:
        float* rows
        int64_t stride
        float* states
        int64_t state_stride
        DeltaShape shape

    cdef struct GateArgs:
        const void* x
        const void* gate
        void* out
        const float* gain
        int64_t x_stride
        int64_t gate_stride
        int64_t out_stride
        int64_t heads
        int64_t width
        Type x_type
        Type gate_type
        float eps
        cbool silu

    int64_t state_floats_of "prelude::cpu::state_floats"(const DeltaShape&)
    const int64_t kMostTaps


cdef extern from "prelude/cpu/recurrent.hpp" namespace "prelude::cpu" nogil:
    cdef struct SequenceCheck:
        const char* wrong
        int64_t segment

    cdef cppclass SequencePlan:
        SequenceCheck build(vector[int32_t], vector[int32_t], vector[int32_t], vector[int32_t], int64_t entries,
                            int64_t kernel) except +
        int64_t rows()
        int64_t kernel()

    cbool convolve(const Kernels&, const SequencePlan&, const ConvolveArgs&, int threads)
    cbool delta_inputs(const Kernels&, const SequencePlan&, const DeltaInputArgs&, int threads)
    cbool delta(const Kernels&, const SequencePlan&, const DeltaArgs&, int threads)
    cbool c_gate "prelude::cpu::gate"(const Kernels&, const GateArgs&, int64_t rows, int threads)


MOST_TAPS = kMostTaps


cdef DeltaShape delta_shape(tuple shape) except *:
    cdef DeltaShape found
    found.key_heads, found.value_heads, found.key_width, found.value_width = shape
    if min(shape) < 1 or found.value_heads % found.key_heads:
        raise ValueError(f"{found.value_heads} value heads do not share {found.key_heads} key heads")
    return found


def state_floats(tuple shape) -> int:
    """Floats of a sequence's state of the gated delta rule. ``shape``: key heads, value heads, values of a key, values
    of a value."""
    return state_floats_of(delta_shape(shape))


cdef class Sequences:
    """The segments of a step, for all of its recurrent layers: ``starts`` [S + 1], ``parents``, ``load`` and ``store``
    [S]; see ``Segments`` in types.hpp. ``entries``: how many states the caller has memory for. ``kernel``:
    inputs that a convolution reads for a token. ``ValueError`` where the segments are no forest or share an entry."""

    cdef SequencePlan plan
    cdef readonly int64_t entries

    def __cinit__(self, starts, parents, load, store, int64_t entries, int64_t kernel):
        cdef SequenceCheck seen = self.plan.build(
            numbers(starts, "starts"), numbers(parents, "parents"), numbers(load, "load"), numbers(store, "store"),
            entries, kernel)
        if seen.wrong != NULL:
            raise ValueError(f"segment {seen.segment}: {seen.wrong.decode()}")
        self.entries = entries

    cdef Rows rows_of(self, cnp.ndarray x, int64_t width, str name) except *:
        """Of a step's tokens."""
        cdef Rows rows = _rows(x, width, name, True)
        if rows.count < self.plan.rows():
            raise ValueError(f"{name}: {rows.count} rows for {self.plan.rows()} tokens")
        return rows

    cdef float* states_of(self, cnp.ndarray states, int64_t first, int64_t values) except NULL:
        """The place of a layer's ``values`` in the first of the entries, from value ``first`` of an entry on."""
        cdef Rows entries = _rows(states, _width(states), "states", True)
        if (entries.type != Type.f32 or entries.count < self.entries or first < 0
                or first + values > cnp.PyArray_DIM(states, 1)):
            raise ValueError(f"{_told(states)} have no {self.entries} entries of {values} values from {first} on")
        return <float*> entries.at + first

    def convolve(self, cnp.ndarray x not None, cnp.ndarray out not None, cnp.ndarray factor not None,
                 cnp.ndarray weight not None, cnp.ndarray bias, cnp.ndarray states not None, int64_t first) -> None:
        """``out`` = a convolution of the rows of ``x`` [T, channels], by ``weight`` [kernel, channels] and ``bias``
        [channels] or None, times those of ``factor``; all rows of one type, those of ``x`` and ``factor`` as far
        apart. The windows of the sequences are in ``states`` [entries, values] float32, from value ``first`` on."""
        cdef ConvolveArgs args
        cdef int64_t channels = _width(weight)
        cdef Rows rows = self.rows_of(x, channels, "x"), made = self.rows_of(out, channels, "out")
        cdef Rows by = self.rows_of(factor, channels, "factor")
        if by.stride != rows.stride or not rows.type == made.type == by.type:
            raise ValueError(f"{_told(x)} times {_told(factor)} into {_told(out)}")
        self.fill(args, rows, made, weight, channels)
        args.windows = self.states_of(states, first, (self.plan.kernel() - 1) * channels)
        args.state_stride = cnp.PyArray_STRIDE(states, 0) // 4
        args.factor, args.bias, args.silu = by.at, _factors(bias, 0, channels, "bias"), False
        cdef cbool done
        with nogil:
            done = convolve(kernels[0], self.plan, args, thread_count())
        check(done)

    cdef int fill(self, ConvolveArgs& args, Rows x, Rows out, cnp.ndarray weight, int64_t channels) except -1:
        args.x, args.x_stride, args.type = x.at, x.stride, x.type
        args.out, args.out_stride, args.out_type = out.at, out.stride, out.type
        args.factor = NULL
        args.bias = NULL
        args.weight = _factors(weight, self.plan.kernel(), channels, "weight")
        args.channels, args.kernel = channels, self.plan.kernel()
        return 0

    def delta(self, cnp.ndarray x not None, cnp.ndarray gates not None, cnp.ndarray made not None,
              cnp.ndarray weight not None, cnp.ndarray rate not None, cnp.ndarray offset not None,
              cnp.ndarray states not None, int64_t first, tuple shape not None) -> None:
        """The gated delta rule. ``x`` [T, channels]: queries, keys and values before their convolution by ``weight``
        [kernel, channels]; ``gates`` [T, 2 * value heads]: b, then a, in rows as far apart. ``rate`` and ``offset``
        [value heads]. ``made`` [T, ``DeltaShape.row()`` or more] float32: the outputs stand afterwards in it where
        the values stand. A sequence's window and matrices are in ``states`` [entries, values], from ``first`` on."""
        cdef DeltaInputArgs args
        cdef DeltaArgs rule
        args.shape = delta_shape(shape)
        cdef int64_t channels = args.shape.decays(), window = (self.plan.kernel() - 1) * channels
        cdef Rows rows = self.rows_of(x, channels, "x")
        cdef Rows decays = self.rows_of(gates, 2 * args.shape.value_heads, "gates")
        cdef Rows to = self.rows_of(made, _width(made), "made")
        if (cnp.PyArray_DIM(made, 1) < args.shape.row() or to.type != Type.f32 or decays.stride != rows.stride
                or decays.type != rows.type):
            raise ValueError(f"{_told(x)} and {_told(gates)} into {_told(made)}; {args.shape.row()} values a row are "
                             "needed")
        self.fill(args.conv, rows, to, weight, channels)
        args.conv.windows = self.states_of(states, first, window + state_floats_of(args.shape))
        args.conv.state_stride, args.conv.silu = cnp.PyArray_STRIDE(states, 0) // 4, True
        args.gates = decays.at
        args.rate = _factors(rate, 0, args.shape.value_heads, "rate")
        args.offset = _factors(offset, 0, args.shape.value_heads, "offset")
        rule.rows, rule.stride, rule.shape = <float*> to.at, to.stride, args.shape
        rule.states, rule.state_stride = args.conv.windows + window, args.conv.state_stride
        cdef cbool done
        with nogil:
            done = delta_inputs(kernels[0], self.plan, args, thread_count()) and delta(
                kernels[0], self.plan, rule, thread_count())
        check(done)


def gate(cnp.ndarray x not None, cnp.ndarray by not None, cnp.ndarray out not None, cnp.ndarray gain=None,
         float eps=0.0, bint silu=False) -> None:
    """``out = x * sigmoid(by)``, or times silu(by); with ``gain`` [width], of x after an RMSNorm of each head of so
    many values. All [T, values]; ``by`` and ``out`` are of one type. ``out`` may be ``x``."""
    cdef GateArgs args
    cdef cbool done
    cdef int64_t values = _width(x)
    cdef Rows rows = _rows(x, values, "x"), factors = _rows(by, values, "by"), made = _rows(out, values, "out", True)
    if rows.count != factors.count or made.count != rows.count or factors.type != made.type:
        raise ValueError(f"{_told(x)} by {_told(by)} into {_told(out)}")
    args.x, args.gate, args.out = rows.at, factors.at, made.at
    args.x_stride, args.gate_stride, args.out_stride = rows.stride, factors.stride, made.stride
    args.x_type, args.gate_type = rows.type, factors.type
    args.width = values if gain is None else cnp.PyArray_DIM(gain, 0)
    args.gain = _factors(gain, 0, args.width, "gain")
    if args.width < 1 or values % args.width:
        raise ValueError(f"rows of {values} values are no whole heads of {args.width}")
    args.heads, args.eps, args.silu = values // args.width, eps, silu
    with nogil:
        done = c_gate(kernels[0], args, rows.count, thread_count())
    check(done)
