# A layer on the two sides of its mixer; see mixer_sides.hpp. Part of cpu.pyx.


cdef extern from "prelude/cpu/mixer_sides.hpp" namespace "prelude::cpu" nogil:
    cdef struct Team:
        const Kernels* kernels
        int threads

    cdef enum class NormKind(int32_t):
        none
        rms
        layer

    cdef struct Norm:
        NormKind kind
        float eps
        const float* gain
        const float* bias

    cdef struct Projection:
        const PackedKernels* kernels
        PackedWeight weight
        const Projection* behind

    int64_t outputs_of(const Projection&)
    cbool multiply "prelude::cpu::sides::multiply"(const Team&, const Projection&, const void*, int64_t stride, Type,
                                                   void* out, int64_t stride, Type, cbool adds, int64_t rows)

    cdef struct Rotation:
        int64_t first
        int64_t heads
        int64_t width
        float eps
        const float* gain

    cdef struct BeforePart "prelude::cpu::BeforeMixer":
        Norm norm
        Projection projection
        Rotation rotation

    cdef struct BeforeArgs:
        const float* x
        int64_t x_stride
        int64_t rows
        int64_t chunk
        void* normed
        void* out
        int64_t out_stride
        Type type
        const float* rope_table
        const int64_t* positions

    cdef struct BehindPart "prelude::cpu::BehindMixer":
        Projection out
        Projection up
        Projection down
        Norm mixer_norm
        Norm mlp_norm
        Norm mixer_after
        Norm mlp_after
        cbool norm_first
        cbool gated
        Activation activation

    cdef struct BehindArgs:
        float* x
        int64_t x_stride
        const void* mixed
        int64_t mixed_stride
        Type mixed_type
        int64_t rows
        int64_t chunk
        void* normed
        void* up
        int64_t up_stride
        float* sums
        Type type

    cbool run_before(const BeforePart&, const BeforeArgs&, const Team&)
    cbool run_behind(const BehindPart&, const BehindArgs&, const Team&)
    cbool product_worth_releasing "prelude::cpu::worth_releasing_gil"(const Projection&, int64_t rows)


@cython.final
cdef class PackedProduct:
    """Products with one packed weight [outputs, inputs], of which addresses and sizes are asked once. ``words`` int32
    are those of ``packed_words``, ``bias`` is float32 [outputs] or None. ``behind``: makes the outputs behind these,
    of a weight that is packed otherwise."""

    cdef object words, bias, behind  # their memory stays where it is while this object lives
    cdef Projection projection

    def __cinit__(self, cnp.ndarray words not None, cnp.ndarray bias, int64_t outputs, int64_t inputs, int packing,
                  PackedProduct behind=None):
        cdef Packing kind = checked_packing(packing)
        if outputs < 0 or inputs < 1 or cnp.PyArray_NDIM(words) != 1 or cnp.PyArray_TYPE(words) != cnp.NPY_INT32 or (
                cnp.PyArray_DIM(words, 0) < packed_words_of(outputs, inputs, kind)) or (
                inputs % whole_inputs(kind)):
            raise ValueError(f"{_told(words)} are not the words of [{outputs}, {inputs}]")
        self.projection.kernels = for_packed[<int> kind]
        self.words, self.bias, self.behind = words, bias, behind
        self.projection.behind = NULL
        if behind is not None:
            if behind.projection.weight.inputs != inputs:
                raise ValueError(f"{inputs} inputs, and {behind.projection.weight.inputs} of the outputs behind")
            self.projection.behind = &behind.projection
        self.projection.weight = packed_weight(<uintptr_t> _memory(words), outputs, inputs, kind)
        self.projection.weight.bias = _factors(bias, 0, outputs, "bias")

    def __call__(self, cnp.ndarray x not None, cnp.ndarray out not None, bint adds=False) -> None:
        """``out = x @ weight.T + bias`` for the rows of ``x`` [T, inputs], or ``out += ...``, which is float32."""
        cdef Team team = _team()
        cdef cbool done
        cdef int64_t outputs = outputs_of(self.projection)
        _check_kernels(self.projection)
        cdef Rows rows = _rows(x, self.projection.weight.inputs, "x"), made = _rows(out, outputs, "out", True)
        if rows.count != made.count:
            raise ValueError(f"{_told(x)} by [{outputs}, {self.projection.weight.inputs}] into {_told(out)}")
        if adds and made.type == Type.bf16:
            raise ValueError("sums are added in float32")
        cdef PyThreadState* state = _let_go(product_worth_releasing(self.projection, rows.count))
        done = multiply(team, self.projection, rows.at, rows.stride, rows.type, made.at, made.stride, made.type,
                        adds, rows.count)
        _take_back(state)
        check(done)

    def gather(self, cnp.ndarray outputs not None):
        """[n, inputs] float32: the weights of ``outputs`` [n] int64; ``IndexError`` if one is outside."""
        cdef PackedWeight weight = self.projection.weight
        cdef int64_t i, count = self.chosen(outputs)
        cdef const int64_t* which = <const int64_t*> cnp.PyArray_DATA(outputs)
        cdef cnp.ndarray found = _float32_rows(count, weight.inputs)
        cdef float* out = <float*> cnp.PyArray_DATA(found)
        with nogil:
            for i in range(count):
                unpack_output(weight, which[i], out + i * weight.inputs)
        return found

    def integer_pairs(self, cnp.ndarray x not None, cnp.ndarray outputs not None):
        """[n] float64: output ``outputs[i]``, int64, of row i of ``x`` [n, inputs] float32, as ``self(x)`` has it
        without the bias. The weight is packed in int8, q4_k or q6_k."""
        cdef PackedWeight weight = self.projection.weight
        cdef int64_t i, count = self.chosen(outputs)
        cdef const int64_t* which = <const int64_t*> cnp.PyArray_DATA(outputs)
        cdef Rows rows = _rows(x, weight.inputs, "x")
        cdef vector[uint32_t] room
        cdef cnp.npy_intp[1] shape
        if not quantizes(weight.packing) or rows.type != Type.f32 or rows.count != count:
            raise ValueError(f"pairs of {_told(x)} and {count} outputs of packing {<int> weight.packing}")
        shape[0] = count
        cdef cnp.ndarray found = cnp.new_array(1, shape, cnp.NPY_FLOAT64)
        cdef double* out = <double*> cnp.PyArray_DATA(found)
        room.resize(row_words(weight.inputs, weight.packing))
        with nogil:
            for i in range(count):
                out[i] = integer_pair(weight, <const float*> rows.at + i * rows.stride, which[i], room.data())
        return found

    cdef int64_t chosen(self, cnp.ndarray outputs) except -1:
        """The number of ``outputs``, which are all there."""
        cdef int64_t count = cnp.PyArray_DIM(outputs, 0) if cnp.PyArray_NDIM(outputs) == 1 else 0
        if not all_below(_indices(outputs, count, "outputs"), count, self.projection.weight.outputs):
            raise IndexError(f"an output is not one of {self.projection.weight.outputs}")
        return count


cdef int _check_kernels(const Projection& projection) except -1:
    if projection.kernels == NULL:
        raise ValueError(f"this machine has no kernels for packing {<int> projection.weight.packing}")
    return 0


cdef Team _team() except *:
    cdef Team team
    team.kernels, team.threads = kernels, thread_count()
    return team


cdef Norm _norm_of(object norm, int64_t width) except *:
    """``norm``: None, or (kind, eps, gain, bias) of a ``RowNorm``."""
    cdef Norm made
    made.kind, made.eps = NormKind.none, 0
    made.gain = NULL
    made.bias = NULL
    if norm is None:
        return made
    kind, eps, gain, bias = norm
    if kind not in ("rms", "layer"):
        raise ValueError(f"there is no native norm {kind!r}")
    made.kind, made.eps = NormKind.layer if kind == "layer" else NormKind.rms, eps
    made.gain, made.bias = _factors(gain, 0, width, "gain"), _factors(bias, 0, width, "bias")
    return made


cdef Rows _room(cnp.ndarray x, int64_t rows, int64_t width, Type type, str name) except *:
    """Rows of a ``type`` that a call may write to, as many as ``rows`` or more."""
    if x is None:
        raise ValueError(f"{name}: None, where {rows} rows of {width} values are needed")
    cdef Rows room = _rows(x, width, name, True)
    if room.count < rows or room.type != type:
        raise ValueError(f"{name}: {_told(x)}, where {rows} rows of {width} values are needed")
    return room


cdef Rows _full_room(cnp.ndarray x, int64_t rows, int64_t width, Type type, str name) except *:
    """A room without gaps."""
    cdef Rows room = _room(x, rows, width, type, name)
    if room.stride != width:
        raise ValueError(f"{name}: {_told(x)}, where rows without gaps are needed")
    return room


@cython.final
cdef class BeforeMixer:
    """Norm, projection, and norm and rotation of heads. ``norm``: (kind, eps, gain, bias) or None. ``rotation``:
    (first value of a row that turns, heads, width, eps, gain [heads, width] or None), or None."""

    cdef object _held
    cdef BeforePart part

    def __cinit__(self, PackedProduct projection not None, norm=None, rotation=None):
        cdef int64_t first, heads, width
        _check_kernels(projection.projection)
        self.part.projection = projection.projection
        self.part.norm = _norm_of(norm, projection.projection.weight.inputs)
        self.part.rotation.heads = 0
        self._held = projection, norm, rotation
        if rotation is None:
            return
        first, heads, width, eps, gain = rotation
        if (heads < 1 or width < 2 or width % 2 or first < 0
                or first + heads * width > outputs_of(projection.projection)):
            raise ValueError(f"{heads} heads of {width} from {first} on do not lie in "
                             f"{outputs_of(projection.projection)} values")
        self.part.rotation.first, self.part.rotation.heads, self.part.rotation.width = first, heads, width
        self.part.rotation.eps = eps
        self.part.rotation.gain = _factors(gain, heads, width, "gain")

    def __call__(self, cnp.ndarray x not None, cnp.ndarray out not None, int64_t chunk, cnp.ndarray normed=None,
                 cnp.ndarray table=None, cnp.ndarray positions=None) -> None:
        """From the rows of ``x`` [T, inputs] float32 into ``out`` [T, outputs], ``chunk`` rows at a time. ``normed``
        [chunk or all rows, inputs] is room, of the type of ``out``; see ``rotate`` for ``table`` and ``positions``."""
        cdef BeforeArgs args
        cdef Team team = _team()
        cdef cbool done
        cdef int64_t inputs = self.part.projection.weight.inputs
        cdef Rows rows = _rows(x, inputs, "x"), made = _rows(out, outputs_of(self.part.projection), "out", True)
        if rows.type != Type.f32 or chunk < 1 or rows.count != made.count:
            raise ValueError(f"{_told(x)} into {_told(out)}, {chunk} rows at a time")
        args.x, args.x_stride, args.rows, args.chunk = <const float*> rows.at, rows.stride, rows.count, chunk
        args.out, args.out_stride, args.type = made.at, made.stride, made.type
        args.normed = NULL
        if self.part.norm.kind != NormKind.none:
            args.normed = _full_room(normed, min(chunk, rows.count), inputs, made.type, "normed").at
        args.rope_table = NULL
        args.positions = NULL
        if self.part.rotation.heads:
            args.rope_table = _turns(table, self.part.rotation.width)
            args.positions = _indices(positions, rows.count, "positions")
        cdef PyThreadState* state = _let_go(product_worth_releasing(self.part.projection, rows.count))
        done = run_before(self.part, args, team)
        _take_back(state)
        check(done)


@cython.final
cdef class BehindMixer:
    """The projection of a mixer's output, the MLP, and the norms beside them. Norms are (kind, eps, gain, bias) or
    None; ``activation`` is one of ``ACTIVATIONS``."""

    cdef object _held
    cdef BehindPart part

    def __cinit__(self, PackedProduct out not None, PackedProduct up not None, PackedProduct down not None,
                  activation, bint gated, bint norm_first, mixer_norm, mlp_norm, mixer_after, mlp_after):
        cdef int64_t width = up.projection.weight.inputs, made = outputs_of(up.projection)
        for one in (out, up, down):
            _check_kernels((<PackedProduct> one).projection)
        if gated:
            made //= 2
        if (outputs_of(out.projection) != width or outputs_of(down.projection) != width
                or down.projection.weight.inputs != made or mlp_norm is None):
            raise ValueError(f"products into {outputs_of(out.projection)}, {outputs_of(up.projection)} and "
                             f"{outputs_of(down.projection)} values do not make a layer of {width}")
        self.part.out, self.part.up, self.part.down = out.projection, up.projection, down.projection
        self.part.activation, self.part.gated = <Activation> <int> ACTIVATIONS[activation], gated
        self.part.norm_first = norm_first
        self.part.mixer_norm = _norm_of(mixer_norm, width)
        self.part.mlp_norm = _norm_of(mlp_norm, width)
        self.part.mixer_after = _norm_of(mixer_after, width)
        self.part.mlp_after = _norm_of(mlp_after, width)
        self._held = out, up, down, mixer_norm, mlp_norm, mixer_after, mlp_after

    def __call__(self, cnp.ndarray x not None, cnp.ndarray mixed not None, int64_t chunk, cnp.ndarray normed,
                 cnp.ndarray up, cnp.ndarray sums=None) -> None:
        """Adds to ``x`` [T, width] float32, in place, for the mixer's output ``mixed`` [T, inputs]; ``chunk`` rows at
        a time. ``normed`` [chunk or all rows, width] and ``up`` [the same, outputs of the product] are room of one
        type, ``sums`` [the same, width] room of float32 where a product is normed before it is added."""
        cdef BehindArgs args
        cdef Team team = _team()
        cdef cbool done
        cdef int64_t width = self.part.up.weight.inputs, some
        cdef Rows rows = _rows(x, width, "x", True), read = _rows(mixed, self.part.out.weight.inputs, "mixed"), wide
        if rows.type != Type.f32 or chunk < 1 or rows.count != read.count:
            raise ValueError(f"{_told(x)} for {_told(mixed)}, {chunk} rows at a time")
        some = min(chunk, rows.count)
        if up is None:
            raise ValueError("up: None, where a room is needed")
        wide = _room(up, some, outputs_of(self.part.up), _type_of(up), "up")
        args.normed = _full_room(normed, some, width, wide.type, "normed").at
        args.sums = NULL
        if self.part.mixer_after.kind != NormKind.none or self.part.mlp_after.kind != NormKind.none:
            args.sums = <float*> _full_room(sums, some, width, Type.f32, "sums").at
        args.x, args.x_stride, args.rows, args.chunk = <float*> rows.at, rows.stride, rows.count, chunk
        args.mixed, args.mixed_stride, args.mixed_type = read.at, read.stride, read.type
        args.up, args.up_stride, args.type = wide.at, wide.stride, wide.type
        cdef PyThreadState* state = _let_go(product_worth_releasing(self.part.up, rows.count))
        done = run_behind(self.part, args, team)
        _take_back(state)
        check(done)
