# Recurrent layers over the forest of a step; the drawing is in include/prelude/cpu/recurrent.hpp.


cdef extern from "prelude/cpu/recurrent_types.hpp" namespace "prelude::cpu" nogil:
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
    cbool gate(const Kernels&, const GateArgs&, int64_t rows, int threads)


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


cdef vector[int32_t] numbers(object values, str name) except *:
    cdef cnp.ndarray array = column(values, np.int32, name)
    cdef const int32_t* first = <const int32_t*> cnp.PyArray_DATA(array)
    cdef vector[int32_t] copied
    copied.assign(first, first + array.shape[0])
    return copied


cdef class Sequences:
    """The segments of a step, for all of its recurrent layers: ``starts`` [S + 1], ``parents``, ``load`` and ``store``
    [S]; see ``Segments`` in recurrent_types.hpp. ``entries``: how many states the caller has memory for. ``kernel``:
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

    cdef int expect(self, int64_t rows, int64_t entries) except -1:
        if self.plan.rows() > rows or self.entries > entries:
            raise ValueError(f"{rows} rows and {entries} entries for {self.plan.rows()} and {self.entries}")
        return 0

    def convolve(self, uintptr_t x, int64_t x_stride, uintptr_t out, int64_t out_stride, uintptr_t factor,
                 uintptr_t weight, uintptr_t bias, uintptr_t windows, int64_t state_stride, int64_t channels,
                 int64_t rows, int64_t entries, bint half) -> None:
        """A convolution of ``channels`` values of each of the ``rows``, times the rows of ``factor`` where that is not
        0; ``windows`` are those of ``entries`` entries. ``half``: rows are bfloat16."""
        self.expect(rows, entries)
        cdef ConvolveArgs args
        self.fill(args, x, x_stride, out, out_stride, weight, windows, state_stride, channels, half)
        args.factor, args.bias = <const void*> factor, <const float*> bias
        args.out_type, args.silu = args.type, False
        cdef cbool done
        with nogil:
            done = convolve(kernels[0], self.plan, args, thread_count())
        check(done)

    cdef void fill(self, ConvolveArgs& args, uintptr_t x, int64_t x_stride, uintptr_t out, int64_t out_stride,
                   uintptr_t weight, uintptr_t windows, int64_t state_stride, int64_t channels, bint half):
        args.x, args.x_stride = <const void*> x, x_stride
        args.out, args.out_stride = <void*> out, out_stride
        args.factor = NULL
        args.bias = NULL
        args.weight, args.windows = <const float*> weight, <float*> windows
        args.state_stride, args.channels, args.kernel = state_stride, channels, self.plan.kernel()
        args.type = Type.bf16 if half else Type.f32

    def delta(self, uintptr_t x, int64_t x_stride, uintptr_t gates, uintptr_t made, int64_t made_stride,
              uintptr_t weight, uintptr_t rate, uintptr_t offset, uintptr_t windows, uintptr_t states,
              int64_t state_stride, tuple shape, int64_t rows, int64_t entries, bint half) -> None:
        """The gated delta rule. ``x``: rows of queries, keys and values before their convolution; ``gates``: of them
        the first b. ``made``: float32 rows of at least ``DeltaShape.row()`` values; where the values stand in them
        the outputs stand afterwards."""
        self.expect(rows, entries)
        cdef DeltaInputArgs args
        args.shape = delta_shape(shape)
        if made_stride < args.shape.row():
            raise ValueError(f"rows of {made_stride} values, {args.shape.row()} are needed")
        self.fill(args.conv, x, x_stride, made, made_stride, weight, windows, state_stride, args.shape.decays(), half)
        args.conv.out_type, args.conv.silu = Type.f32, True
        args.gates, args.rate, args.offset = <const void*> gates, <const float*> rate, <const float*> offset
        cdef DeltaArgs rule
        rule.rows, rule.stride, rule.shape = <float*> made, made_stride, args.shape
        rule.states, rule.state_stride = <float*> states, state_stride
        cdef cbool done
        with nogil:
            done = delta_inputs(kernels[0], self.plan, args, thread_count()) and delta(
                kernels[0], self.plan, rule, thread_count())
        check(done)


def gate_rows(uintptr_t x, int64_t x_stride, bint x_half, uintptr_t by, int64_t by_stride, uintptr_t out,
              int64_t out_stride, bint half, uintptr_t gain, int64_t rows, int64_t heads, int64_t width, float eps,
              bint silu) -> None:
    """``out = x * sigmoid(by)``, or times silu(by); where ``gain`` [width] is not 0, of x after an RMSNorm of each
    head. ``half``: ``by`` and ``out`` are bfloat16."""
    cdef GateArgs args
    cdef cbool done
    args.x, args.gate, args.out, args.gain = <const void*> x, <const void*> by, <void*> out, <const float*> gain
    args.x_stride, args.gate_stride, args.out_stride = x_stride, by_stride, out_stride
    args.heads, args.width, args.eps, args.silu = heads, width, eps, silu
    args.x_type = Type.bf16 if x_half else Type.f32
    args.gate_type = Type.bf16 if half else Type.f32
    with nogil:
        done = gate(kernels[0], args, rows, thread_count())
    check(done)
