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
    cbool before_worth_releasing "prelude::cpu::worth_releasing_gil"(const BeforePart&, const BeforeArgs&)
    cbool behind_worth_releasing "prelude::cpu::worth_releasing_gil"(const BehindPart&, const BehindArgs&)


@cython.final
cdef class PackedProduct:
    """Products with one packed weight [outputs, inputs], of which addresses and sizes are asked once. ``words`` int32
    are those of ``packed_words``, ``bias`` is float32 [outputs] or None."""

    cdef object words, bias  # their memory stays where it is while this object lives
    cdef Projection projection

    def __cinit__(self, words, bias, int64_t outputs, int64_t inputs, int packing):
        cdef Packing kind = checked_packing(packing)
        cdef object size = words.shape
        if outputs < 0 or inputs < 1 or words.element_size() != 4 or not words.is_contiguous() or (
                PyTuple_GET_SIZE(size) != 1 or _entry(size, 0) < packed_words_of(outputs, inputs, kind)):
            raise ValueError(f"{list(size)} of {words.dtype} are not the words of [{outputs}, {inputs}]")
        self.projection.kernels = for_packed[<int> kind]
        self.words, self.bias = words, bias
        self.projection.weight = packed_weight(words.data_ptr(), outputs, inputs, kind)
        self.projection.weight.bias = <const float*> _factors_at(bias, outputs)

    def __call__(self, x, out, bint adds=False) -> None:
        """``out = x @ weight.T + bias`` for the rows of ``x`` [T, inputs], or ``out += ...``, which is float32."""
        cdef object size = x.shape, of_out = out.shape, strides = x.stride(), out_strides = out.stride()
        cdef PackedArgs args
        cdef cbool done
        _check_kernels(self.projection)
        args.weight = self.projection.weight
        args.rows, args.adds = _entry(size, 0), adds
        if (_entry(size, 1) != args.weight.inputs or _entry(of_out, 0) != args.rows
                or _entry(of_out, 1) != args.weight.outputs):
            raise ValueError(f"{list(size)} by [{args.weight.outputs}, {args.weight.inputs}] into {list(of_out)}")
        _are_rows(size, strides)
        _are_rows(of_out, out_strides)
        args.x, args.x_stride = _memory(x), _entry(strides, 0)
        args.out, args.out_stride = <void*> _memory(out), _entry(out_strides, 0)
        args.x_type, args.out_type = _type_of(x), _type_of(out)
        if adds and args.out_type == Type.bf16:
            raise ValueError("sums are added in float32")
        if packed_worth_releasing_gil(args):
            with nogil:
                done = run_packed(self.projection.kernels[0], args, thread_count())
        else:
            done = run_packed(self.projection.kernels[0], args, thread_count())
        check(done)


cdef int _check_kernels(const Projection& projection) except -1:
    if projection.kernels == NULL:
        raise ValueError(f"this machine has no kernels for packing {<int> projection.weight.packing}")
    return 0


cdef Type _type_of(object x) except *:
    return Type.bf16 if _type_is_half(x.dtype) else Type.f32


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
    made.gain, made.bias = <const float*> _factors_at(gain, width), <const float*> _factors_at(bias, width)
    return made


cdef int64_t _rows_of(object x, int64_t width, str name) except -1:
    """The number of rows of ``width`` values side by side."""
    cdef object size = x.shape
    if _entry(size, 1) != width:
        raise ValueError(f"{name}: {list(size)}, where rows of {width} values are needed")
    _are_rows(size, x.stride())
    return _entry(size, 0)


cdef int _check_room(object room, int64_t rows, int64_t width, object like, str name) except -1:
    """Checks that ``room`` has ``rows`` rows of ``width`` values or more, side by side, of the type of ``like``."""
    if (_rows_of(room, width, name) < rows or not room.is_contiguous() or room.dtype is not like.dtype):
        raise ValueError(f"{name}: {room.dtype} {list(room.shape)}, where {rows} rows of {width} are needed")
    return 0


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
                or first + heads * width > projection.projection.weight.outputs):
            raise ValueError(f"{heads} heads of {width} from {first} on do not lie in "
                             f"{projection.projection.weight.outputs} values")
        self.part.rotation.first, self.part.rotation.heads, self.part.rotation.width = first, heads, width
        self.part.rotation.eps = eps
        self.part.rotation.gain = <const float*> _gain_at(gain, heads, width)

    def __call__(self, x, out, int64_t chunk, normed=None, table=None, positions=None) -> None:
        """From the rows of ``x`` [T, inputs] float32 into ``out`` [T, outputs], ``chunk`` rows at a time. ``normed``
        [chunk or all rows, inputs] is room, of the type of ``out``; see ``rotate_tensor`` for ``table`` and
        ``positions``."""
        cdef BeforeArgs args
        cdef Team team = _team()
        cdef cbool done
        cdef int64_t inputs = self.part.projection.weight.inputs
        args.rows = _rows_of(x, inputs, "x")
        if x.dtype is not _float32 or chunk < 1:
            raise ValueError(f"rows of {x.dtype}, {chunk} at a time")
        if _rows_of(out, self.part.projection.weight.outputs, "out") != args.rows:
            raise ValueError(f"{args.rows} rows into {list(out.shape)}")
        args.type = _type_of(out)
        args.chunk = chunk
        args.normed = NULL
        if self.part.norm.kind != NormKind.none:
            _check_room(normed, min(chunk, args.rows), inputs, out, "normed")
            args.normed = <void*> _memory(normed)
        args.rope_table = NULL
        args.positions = NULL
        if self.part.rotation.heads:
            args.rope_table = <const float*> _turns_at(table, self.part.rotation.width)
            args.positions = <const int64_t*> _indices_at(positions, args.rows)
        args.x, args.x_stride = <const float*> _memory(x), _entry(x.stride(), 0)
        args.out, args.out_stride = <void*> _memory(out), _entry(out.stride(), 0)
        if before_worth_releasing(self.part, args):
            with nogil:
                done = run_before(self.part, args, team)
        else:
            done = run_before(self.part, args, team)
        check(done)


@cython.final
cdef class BehindMixer:
    """The projection of a mixer's output, the MLP, and the norms beside them. Norms are (kind, eps, gain, bias) or
    None; ``activation`` is one of ``ACTIVATIONS``."""

    cdef object _held
    cdef BehindPart part

    def __cinit__(self, PackedProduct out not None, PackedProduct up not None, PackedProduct down not None,
                  activation, bint gated, bint norm_first, mixer_norm, mlp_norm, mixer_after, mlp_after):
        cdef int64_t width = up.projection.weight.inputs, made = up.projection.weight.outputs
        for one in (out, up, down):
            _check_kernels((<PackedProduct> one).projection)
        if gated:
            made //= 2
        if (out.projection.weight.outputs != width or down.projection.weight.outputs != width
                or down.projection.weight.inputs != made or mlp_norm is None):
            raise ValueError(f"products into {out.projection.weight.outputs}, {up.projection.weight.outputs} and "
                             f"{down.projection.weight.outputs} values do not make a layer of {width}")
        self.part.out, self.part.up, self.part.down = out.projection, up.projection, down.projection
        self.part.activation, self.part.gated = <Activation> <int> ACTIVATIONS[activation], gated
        self.part.norm_first = norm_first
        self.part.mixer_norm = _norm_of(mixer_norm, width)
        self.part.mlp_norm = _norm_of(mlp_norm, width)
        self.part.mixer_after = _norm_of(mixer_after, width)
        self.part.mlp_after = _norm_of(mlp_after, width)
        self._held = out, up, down, mixer_norm, mlp_norm, mixer_after, mlp_after

    def __call__(self, x, mixed, int64_t chunk, normed, up, sums=None) -> None:
        """Adds to ``x`` [T, width] float32, in place, for the mixer's output ``mixed`` [T, inputs]; ``chunk`` rows at
        a time. ``normed`` [chunk or all rows, width] and ``up`` [the same, outputs of the product] are room of one
        type, ``sums`` [the same, width] room of float32 where a product is normed before it is added."""
        cdef BehindArgs args
        cdef Team team = _team()
        cdef cbool done
        cdef int64_t width = self.part.up.weight.inputs, some
        args.rows = _rows_of(x, width, "x")
        if x.dtype is not _float32 or chunk < 1:
            raise ValueError(f"rows of {x.dtype}, {chunk} at a time")
        if _rows_of(mixed, self.part.out.weight.inputs, "mixed") != args.rows:
            raise ValueError(f"{args.rows} rows of x and {list(mixed.shape)} of the mixer")
        some = min(chunk, args.rows)
        args.type, args.mixed_type = _type_of(up), _type_of(mixed)
        _check_room(normed, some, width, up, "normed")
        if _rows_of(up, self.part.up.weight.outputs, "up") < some:
            raise ValueError(f"{some} rows into {list(up.shape)}")
        args.sums = NULL
        if self.part.mixer_after.kind != NormKind.none or self.part.mlp_after.kind != NormKind.none:
            _check_room(sums, some, width, x, "sums")
            args.sums = <float*> _memory(sums)
        args.chunk, args.normed = chunk, <void*> _memory(normed)
        args.x, args.x_stride = <float*> _memory(x), _entry(x.stride(), 0)
        args.mixed, args.mixed_stride = _memory(mixed), _entry(mixed.stride(), 0)
        args.up, args.up_stride = <void*> _memory(up), _entry(up.stride(), 0)
        if behind_worth_releasing(self.part, args):
            with nogil:
                done = run_behind(self.part, args, team)
        else:
            done = run_behind(self.part, args, team)
        check(done)
