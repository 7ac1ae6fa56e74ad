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

__device__ __forceinline__ element4 narrowed(float4 v) {
    element4 out;
    out.x = narrow(v.x);
    out.y = narrow(v.y);
    out.z = narrow(v.z);
    out.w = narrow(v.w);
    return out;
}

// ids[row] >= 0: a token. Below: token -1 - ids[row] of those that the step before has drawn on the device.
extern "C" __global__ void embed_norm(const int* ids, const int* pending_tokens, const element* table, const float* gain,
                                      float eps, int width, float* x, element* normed) {
    begin();
    const long long row = blockIdx.x;
    int id = ids[row];
    if (id < 0) id = pending_tokens[-1 - id];
    const int quads = width / 4;
    const element4* from = (const element4*)(table + (long long)id * width);
    float4* to = (float4*)(x + row * width);
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        const element4 v = from[i];
        to[i] = make_float4(widen(v.x), widen(v.y), widen(v.z), widen(v.w));
    }
    __syncthreads();
    const float scale = scale_of(to, quads, eps, width);
    element4* out = (element4*)(normed + row * width);
    for (int i = threadIdx.x; i < quads; i += blockDim.x) out[i] = narrowed(scaled(to[i], scale, ((const float4*)gain)[i]));
}

extern "C" __global__ void rms_norm(const float* x, const float* gain, float eps, int width, element* normed) {
    begin();
    const long long row = blockIdx.x;
    const int quads = width / 4;
    const float4* from = (const float4*)(x + row * width);
    const float scale = scale_of(from, quads, eps, width);
    element4* out = (element4*)(normed + row * width);
    for (int i = threadIdx.x; i < quads; i += blockDim.x)
        out[i] = narrowed(scaled(from[i], scale, ((const float4*)gain)[i]));
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
        const float4 out = scaled(v, scale, ((const float4*)gain)[i]);
        if (normed) ((element4*)(normed + row * width))[i] = narrowed(out);
        if (exact) ((float4*)(exact + row * width))[i] = out;
    }
}

// Rows of elements, gathered.
extern "C" __global__ void gather(const int* rows, const element* from, int width, element* to) {
    begin();
    const element4* source = (const element4*)(from + (long long)rows[blockIdx.x] * width);
    element4* target = (element4*)(to + (long long)blockIdx.x * width);
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) target[i] = source[i];
}

// Item i: the mean of exact[indptr[i]..indptr[i+1]], summed in float64 in order.
extern "C" __global__ void mean_rows(const float* exact, const int* indptr, int width, float* out) {
    begin();
    const int first = indptr[blockIdx.x], last = indptr[blockIdx.x + 1];
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        double sum = 0.0;
        for (int row = first; row < last; row++) sum += (double)exact[(long long)row * width + i];
        out[(long long)blockIdx.x * width + i] = (float)(sum / (double)(last - first));
    }
}
