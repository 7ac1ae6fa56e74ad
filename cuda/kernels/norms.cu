// RMSNorm where the residual stream is float32: alone, behind the embedding, and over gathered rows.
//     normed[i] = narrow(x[i] / sqrt(mean(x^2) + eps) * gain[i])
// One block a row; widths are multiples of 4.

__device__ __forceinline__ float scale_of(const float4* x, int quads, float eps, int width) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        const float4 v = x[i];
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    return rsqrtf(block_sum(squares) / (float)width + eps);
}

__device__ __forceinline__ float4 scaled(float4 v, float scale, float4 gain) {
    v.x = v.x * scale * gain.x;
    v.y = v.y * scale * gain.y;
    v.z = v.z * scale * gain.z;
    v.w = v.w * scale * gain.w;
    return v;
}

__device__ __forceinline__ void put4(element* to, float4 v) {
    to[0] = narrow(v.x);
    to[1] = narrow(v.y);
    to[2] = narrow(v.z);
    to[3] = narrow(v.w);
}

// A row's norm: eight values a thread, or four where the width is a multiple of 4 only.
__device__ __forceinline__ void store_normed(const float4* x, float scale, const float* gain, int width, element* out) {
    const float4* gains = (const float4*)gain;
    if (width % 8 == 0) {
        for (int i = threadIdx.x; i < width / 8; i += blockDim.x) {
            Eight eight;
            put4(eight.v, scaled(x[2 * i], scale, gains[2 * i]));
            put4(eight.v + 4, scaled(x[2 * i + 1], scale, gains[2 * i + 1]));
            ((Eight*)out)[i] = eight;
        }
        return;
    }
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        element4 four;
        put4((element*)&four, scaled(x[i], scale, gains[i]));
        ((element4*)out)[i] = four;
    }
}

// A row of the table in float32: eight values a thread, or four where the width is a multiple of 4 only.
__device__ __forceinline__ void widen_row(const element* from, int width, float4* to) {
    if (width % 8 == 0) {
        for (int i = threadIdx.x; i < width / 8; i += blockDim.x) {
            const Eight v = ((const Eight*)from)[i];
            to[2 * i] = make_float4(widen(v.v[0]), widen(v.v[1]), widen(v.v[2]), widen(v.v[3]));
            to[2 * i + 1] = make_float4(widen(v.v[4]), widen(v.v[5]), widen(v.v[6]), widen(v.v[7]));
        }
        return;
    }
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        const element4 v = ((const element4*)from)[i];
        to[i] = make_float4(widen(v.x), widen(v.y), widen(v.z), widen(v.w));
    }
}

// ids[row] >= 0: a token. Below: token -1 - ids[row] of those that the step before has drawn on the device.
extern "C" __global__ void embed_norm(const int* ids, const int* pending_tokens, const element* table, const float* gain,
                                      float eps, int width, float* x, element* normed) {
    begin();
    const long long row = blockIdx.x;
    int id = ids[row];
    if (id < 0) id = pending_tokens[-1 - id];
    float4* to = (float4*)(x + row * width);
    widen_row(table + (long long)id * width, width, to);
    __syncthreads();
    const float scale = scale_of(to, width / 4, eps, width);
    store_normed(to, scale, gain, width, normed + row * width);
}

extern "C" __global__ void rms_norm(const float* x, const float* gain, float eps, int width, element* normed) {
    begin();
    const long long row = blockIdx.x;
    const int quads = width / 4;
    const float4* from = (const float4*)(x + row * width);
    const float scale = scale_of(from, quads, eps, width);
    store_normed(from, scale, gain, width, normed + row * width);
}

// Rows rows[i] of x: as they are to `picked`, normed to `normed` and, not narrowed, to `exact`. Each may be null.
extern "C" __global__ void gather_norm(const int* rows, const float* x, const float* gain, float eps, int width,
                                       float* picked, element* normed, float* exact) {
    begin();
    const long long row = blockIdx.x;
    const int quads = width / 4;
    const float4* from = (const float4*)(x + (long long)rows[row] * width);
    const float scale = scale_of(from, quads, eps, width);
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        const float4 v = from[i];
        if (picked) ((float4*)(picked + row * width))[i] = v;
        if (exact) ((float4*)(exact + row * width))[i] = scaled(v, scale, ((const float4*)gain)[i]);
    }
    if (normed) store_normed(from, scale, gain, width, normed + row * width);
}

// Rows of elements, gathered.
extern "C" __global__ void gather(const int* rows, const element* from, int width, element* to) {
    begin();
    const element4* source = (const element4*)(from + (long long)rows[blockIdx.x] * width);
    element4* target = (element4*)(to + (long long)blockIdx.x * width);
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) target[i] = source[i];
}

// Item i: of exact[indptr[i]..indptr[i+1]] the mean, the largest values, the sum over the root of the number of rows, the
// mean whose row j weighs before[i] + j + 1, the first row or the last one; `before` may be null. Sums are in float64, in
// order. `out` [items][stride] has the items' vectors.
enum { MEAN, MAX, ROOT, WEIGHTED, FIRST, LAST };

extern "C" __global__ void pool_rows(const float* exact, const int* indptr, const int* before, int mode, int width,
                                     int stride, float* out) {
    begin();
    const int first = indptr[blockIdx.x], count = indptr[blockIdx.x + 1] - first;
    const double start = before ? 1.0 + before[blockIdx.x] : 1.0;
    const double rows = (double)count;
    const double by = mode == ROOT ? sqrt(rows) : mode == WEIGHTED ? rows * start + rows * (rows - 1.0) / 2.0 : rows;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float* at = exact + (long long)first * width + i;
        float found = at[mode == LAST ? (long long)(count - 1) * width : 0];
        if (mode == MAX) {
            for (int row = 1; row < count; row++) {
                const float v = at[(long long)row * width];
                found = found >= v || found != found ? found : v;  // a NaN stays
            }
        } else if (mode != FIRST && mode != LAST) {
            double sum = 0.0;
            for (int row = 0; row < count; row++)
                sum += (double)at[(long long)row * width] * (mode == WEIGHTED ? start + row : 1.0);
            found = (float)(sum / by);
        }
        out[(long long)blockIdx.x * stride + i] = found;
    }
}
