# Products with packed weights; see packed_matmul.hpp. Included by cpu.pyx.


cdef extern from "prelude/cpu/packed_matmul.hpp" namespace "prelude::cpu" nogil:
    cdef enum class Packing(int32_t):
        f32
        bf16
        int8
        widened
        f16
        q4_k
        q6_k

    cdef struct PackedWeight:
        const uint32_t* words
        const float* bias
        int64_t inputs
        int64_t outputs
        Packing packing

    cdef cppclass PackedKernels:
        const char* name

    int64_t packed_words_of "prelude::cpu::packed_words"(int64_t outputs, int64_t inputs, Packing)
    const PackedKernels* best_packed_kernels(Packing)
    cbool pairs_are_quick()
    void pack_weight(const float*, int64_t stride, int64_t outputs, int64_t inputs, Packing, uint32_t*, int64_t first,
                     int threads)
    void pack_weight(const uint16_t*, int64_t stride, int64_t outputs, int64_t inputs, Packing, uint32_t*,
                     int64_t first, int threads)
    void prefer_large_pages(void*, size_t)
    void pack_q8(const uint8_t* rows, int64_t outputs, int64_t inputs, uint32_t*)
    void pack_few(const uint8_t* rows, int64_t outputs, int64_t inputs, Packing, uint32_t*)
    cbool quantizes(Packing)
    void unpack_output(const PackedWeight&, int64_t output, float* to)
    float integer_pair(const PackedWeight&, const float* x, int64_t output, uint32_t* room)
    int64_t row_words(int64_t inputs, Packing)

    const int64_t kGroup
    const int64_t kBlock
    const int64_t kQ8Bytes
    const int64_t kFewInputs
    const float kMostScaled


cdef extern from "prelude/cpu/blocks.hpp" namespace "prelude::cpu" nogil:
    cdef enum class BlockKind(int32_t):
        q8_0
        q4_k
        q6_k
        q5_k

    int64_t values_of_block(BlockKind)
    void dequantize(BlockKind, const uint8_t* blocks, int64_t values, float* to)
    void quantize_q8(const float* values, int64_t count, uint8_t* blocks)


cdef extern from "prelude/cpu/targets.hpp" namespace "prelude::cpu" nogil:
    void widen(const uint16_t*, int64_t count, float*)
    void narrow(const float*, int64_t count, uint16_t*)
    int64_t count_not_finite[Bits](const Bits*, int64_t count, Bits exponent)


cdef const PackedKernels* for_packed[7]
for _at in range(7):
    for_packed[<int> _at] = best_packed_kernels(<Packing> <int> _at)

PACKINGS = {
    "float32": <int32_t> Packing.f32,
    "bfloat16": <int32_t> Packing.bf16,
    "int8": <int32_t> Packing.int8,
    "widened": <int32_t> Packing.widened,
    "float16": <int32_t> Packing.f16,
    "q4_k": <int32_t> Packing.q4_k,
    "q6_k": <int32_t> Packing.q6_k,
}
BLOCK_KINDS = {
    "Q8_0": <int32_t> BlockKind.q8_0,
    "Q4_K": <int32_t> BlockKind.q4_k,
    "Q6_K": <int32_t> BlockKind.q6_k,
    "Q5_K": <int32_t> BlockKind.q5_k,
}
PACKED_KERNELS = {
    name: for_packed[at].name.decode() for name, at in PACKINGS.items() if for_packed[at] != NULL
}
QUICK_PAIRS = pairs_are_quick()
PACKED_GROUP = kGroup
INT8_BLOCK = kBlock
Q8_BYTES = kQ8Bytes
MOST_INT8_WEIGHT = kMostScaled


cdef Packing checked_packing(int packing) except *:
    if packing < 0 or packing > 6:
        raise ValueError(f"there is no packing {packing}")
    return <Packing> packing


cdef bint few_bits(Packing packing):
    return packing == Packing.q4_k or packing == Packing.q6_k


cdef int64_t whole_inputs(Packing packing):
    """The inputs of a weight are a multiple of it."""
    return kFewInputs if few_bits(packing) else 1


def packed_words(int64_t outputs, int64_t inputs, int packing):
    """Words of 32 bits that a weight [outputs, inputs] takes; ``packing`` is one of ``PACKINGS``."""
    cdef Packing kind = checked_packing(packing)
    if inputs % whole_inputs(kind):
        raise ValueError(f"{inputs} inputs are not whole blocks of {kFewInputs}")
    return packed_words_of(outputs, inputs, kind)


cdef PackedWeight packed_weight(uintptr_t words, int64_t outputs, int64_t inputs, Packing packing):
    cdef PackedWeight weight
    weight.words = <const uint32_t*> words
    weight.bias = NULL
    weight.inputs, weight.outputs, weight.packing = inputs, outputs, packing
    return weight


def pack_rows(uintptr_t weight, int64_t stride, bint half, int64_t outputs, int64_t inputs, int packing,
              uintptr_t words, int64_t first=0):
    """Packs a weight [outputs, inputs] of float32, or of two bytes if ``half``, into ``packed_words`` words: those of a
    weight that has these outputs from ``first`` on. The parts of a weight are packed in their order. Two bytes are
    float16 for that packing, which takes no others, and else bfloat16."""
    cdef Packing kind = checked_packing(packing)
    if kind == Packing.f16 and not half:
        raise ValueError("float16 is packed from float16")
    if few_bits(kind):
        raise ValueError("q4_k and q6_k are packed from blocks")
    with nogil:
        if half:
            pack_weight(<const uint16_t*> weight, stride, outputs, inputs, kind, <uint32_t*> words, first,
                        thread_count())
        else:
            pack_weight(<const float*> weight, stride, outputs, inputs, kind, <uint32_t*> words, first,
                        thread_count())


def address(cnp.ndarray x not None):
    """Where the first value of ``x`` lies."""
    return <uintptr_t> cnp.PyArray_DATA(x)


def widen_values(uintptr_t values, int64_t count, uintptr_t out):
    """``count`` bfloat16, side by side, as float32 at ``out``."""
    with nogil:
        widen(<const uint16_t*> values, count, <float*> out)


def narrow_values(uintptr_t values, int64_t count, uintptr_t out):
    """``count`` float32, side by side, as bfloat16 at ``out``, ties to even."""
    with nogil:
        narrow(<const float*> values, count, <uint16_t*> out)


def not_finite(uintptr_t values, int64_t count, int size, uint64_t exponent):
    """How many of ``count`` values of ``size`` bytes, side by side, are NaN or infinite: all bits of ``exponent`` are
    set in them."""
    if size not in (2, 4, 8):
        raise ValueError(f"there are no floats of {size} bytes")
    cdef int64_t found
    with nogil:
        if size == 2:
            found = count_not_finite(<const uint16_t*> values, count, <uint16_t> exponent)
        elif size == 4:
            found = count_not_finite(<const uint32_t*> values, count, <uint32_t> exponent)
        else:
            found = count_not_finite(<const uint64_t*> values, count, exponent)
    return found


def large_pages(uintptr_t memory, size_t count):
    """Asks for large pages for ``count`` bytes that are not written yet."""
    prefer_large_pages(<void*> memory, count)


def pack_blocks(uintptr_t rows, int64_t outputs, int64_t inputs, int packing, uintptr_t words):
    """Packs rows of Q8_0 into the words of int8, rows of Q4_K and Q6_K into those of q4_k and q6_k, value for value."""
    cdef Packing kind = checked_packing(packing)
    cdef bint few = few_bits(kind)
    cdef int64_t whole = kFewInputs if few else kBlock
    if not quantizes(kind) or inputs % whole:
        raise ValueError(f"{inputs} inputs are not whole blocks of {whole}, or packing {packing} has none")
    with nogil:
        if few:
            pack_few(<const uint8_t*> rows, outputs, inputs, kind, <uint32_t*> words)
        else:
            pack_q8(<const uint8_t*> rows, outputs, inputs, <uint32_t*> words)


def dequantize_rows(int kind, uintptr_t blocks, int64_t rows, int64_t inputs, uintptr_t out):
    """Rows of whole blocks, side by side, as float32 [rows, inputs] at ``out``; ``kind`` is one of ``BLOCK_KINDS``."""
    if kind < 0 or kind > 3:
        raise ValueError(f"there is no kind of blocks {kind}")
    cdef BlockKind of_blocks = <BlockKind> kind
    if inputs % values_of_block(of_blocks):
        raise ValueError(f"{inputs} inputs are not whole blocks of {values_of_block(of_blocks)}")
    with nogil:
        dequantize(of_blocks, <const uint8_t*> blocks, rows * inputs, <float*> out)


def quantize_rows(uintptr_t weight, int64_t rows, int64_t inputs, uintptr_t out):
    """Rows [rows, inputs] of float32, side by side, as rows of Q8_0 at ``out``."""
    if inputs % kBlock:
        raise ValueError(f"{inputs} inputs are not whole blocks of {kBlock}")
    with nogil:
        quantize_q8(<const float*> weight, rows * inputs, <uint8_t*> out)
