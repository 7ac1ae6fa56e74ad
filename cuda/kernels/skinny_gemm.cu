// Products of at most 16 rows by tensor cores (mma, from compute capability 8.0): of texts that are written, or of a short
// question behind a cached state. Such a product computes little, and takes the time in which its weight is read.
//
//     sum[r][o] = x[r][0] weight[o][0] + x[r][1] weight[o][1] + ...
//
// A block has OUTPUTS outputs. Its warps share the columns by pieces: warp w has pieces w, w + WARPS, ... A lane reads
// 16 bytes of a piece of two outputs, straight into registers, AHEAD pieces ahead; the first ones before the kernel in
// front of this one has ended, which does not write them. An instruction multiplies any 16 columns that both sides
// agree on, so a lane's own eight columns serve two instructions. The rows of x lie in shared memory, CHUNK columns at
// a time. The order of a sum depends on the width alone.
#ifdef PRELUDE_FRAGMENTS
constexpr int OUTPUTS = 16, PIECE = 32, CHUNK = 6144, READS = 4;

struct __align__(16) Words {
    u32 v[4];  // eight bfloat16
};

// EIGHTS times eight rows. Rows of x behind the last one are not read: they meet no sum of another row.
template <int WARPS, int AHEAD, int EIGHTS>
__device__ __forceinline__ void product(const element* x, const element* weight, int width, int rows, element* out,
                                        float* added) {
    constexpr int ROWS = 8 * EIGHTS, THREADS = 32 * WARPS;
    static_assert(CHUNK % (PIECE * WARPS * AHEAD) == 0, "pieces that are ahead are of one chunk");
    extern __shared__ float shared[];
    const int pieces = width / PIECE, pitch = min(width, CHUNK) + 8;
    element* held = (element*)shared;  // [ROWS][pitch], and behind them each warp's sums [WARPS][ROWS][OUTPUTS]
    float* sums = (float*)(held + ROWS * pitch);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int upper = lane >> 2, column = (lane & 3) * 2, own = (lane & 3) * 8;
    const element* mine = weight + ((long long)blockIdx.x * OUTPUTS + upper) * width + own;
    Words first[AHEAD], second[AHEAD];  // of outputs `upper` and 8 more
    const auto request = [&](int i, int piece) {
        if (piece >= pieces) return;
        first[i] = *(const Words*)(mine + piece * PIECE);
        second[i] = *(const Words*)(mine + piece * PIECE + 8LL * width);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) request(i, warp + i * WARPS);
    begin();

    // A warp reads parts of rows `line` and 8 more.
    const int lines = rows > 4 ? 8 : rows > 2 ? 4 : rows, line = warp % lines, reader = warp / lines;
    const int step = WARPS / lines * 32;
    float acc[EIGHTS][4];
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) acc[e][0] = acc[e][1] = acc[e][2] = acc[e][3] = 0.0f;
    int from = warp;  // the piece of first[0]
    for (int chunk = 0; chunk < width; chunk += CHUNK) {
        const int columns = min(width - chunk, CHUNK), eights = columns / 8;
        if (chunk) __syncthreads();  // every warp has multiplied the chunk before
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            const int row = line + 8 * e;
            if (row >= rows) continue;
            const Words* there = (const Words*)(x + (long long)row * width + chunk);
            Words* here = (Words*)(held + row * pitch);
            for (int i = reader * 32 + lane; i < eights; i += READS * step) {
                Words read[READS];
#pragma unroll
                for (int r = 0; r < READS; r++)
                    if (i + r * step < eights) read[r] = there[i + r * step];
#pragma unroll
                for (int r = 0; r < READS; r++)
                    if (i + r * step < eights) here[i + r * step] = read[r];
            }
        }
        __syncthreads();
        for (; from * PIECE < chunk + columns; from += AHEAD * WARPS) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int piece = from + i * WARPS;
                if (piece >= pieces) continue;
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    const Words right = *(const Words*)(held + (upper + 8 * e) * pitch + piece * PIECE + own - chunk);
#pragma unroll
                    for (int s = 0; s < 4; s += 2) {
                        const u32 left[4] = {first[i].v[s], second[i].v[s], first[i].v[s + 1], second[i].v[s + 1]};
                        mma(acc[e], left, right.v[s], right.v[s + 1]);
                    }
                }
                request(i, piece + AHEAD * WARPS);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[(warp * ROWS + 8 * e + column + (i & 1)) * OUTPUTS + upper + 8 * (i >> 1)] = acc[e][i];
    __syncthreads();
    for (int i = threadIdx.x; i < rows * OUTPUTS; i += THREADS) {
        const int row = i / OUTPUTS, output = i % OUTPUTS;
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += sums[(w * ROWS + row) * OUTPUTS + output];
        const long long at = ((long long)row * gridDim.x + blockIdx.x) * OUTPUTS + output;
        if (added)
            added[at] += sum;
        else
            out[at] = narrow(sum);
    }
}

template <int WARPS, int AHEAD>
__device__ __forceinline__ void gemm(const element* x, const element* weight, int width, int rows, element* out,
                                     float* added) {
    if (rows <= 8)
        product<WARPS, AHEAD, 1>(x, weight, width, rows, out, added);
    else
        product<WARPS, AHEAD, 2>(x, weight, width, rows, out, added);
}

// x [rows][width], weight [outputs][width], outputs / OUTPUTS blocks. The sums become `out` [rows][outputs], or are added to
// `added` [rows][outputs]; the other is null. Dynamic shared memory: `held` and `sums`.
extern "C" __global__ void __launch_bounds__(256, 2)
    skinny_gemm(const element* x, const element* weight, int width, int rows, element* out, float* added) {
    gemm<8, 4>(x, weight, width, rows, out, added);
}

// The same where the blocks are too few for the device: twice the warps, and more that is ahead.
extern "C" __global__ void __launch_bounds__(512, 1)
    skinny_gemm_wide(const element* x, const element* weight, int width, int rows, element* out, float* added) {
    gemm<16, 6>(x, weight, width, rows, out, added);
}
#endif
