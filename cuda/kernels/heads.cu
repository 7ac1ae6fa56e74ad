// The operations between the projection and attention, and between gate_up and down.

// Per-head norm (gains may be null), rotary embedding, and the write to the pool, in one pass over a token's heads.
//     heads [tokens][queries + keys + values][HEAD_DIM], in place
//     rope_table [positions][HEAD_DIM], cosines then sines; the halves of a head turn together (x[i], x[i + D/2])
//     slots [tokens], -1: not written. pool_k, pool_v [slots][keys][HEAD_DIM] of this layer
// One block a token. Heads of 64, 128 and 256 are read and written eight values a lane (16 bytes in bfloat16), several
// heads a warp; other widths by a warp a head. The sum of a head's norm is over HEAD_DIM in a fixed order.
#if HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256
extern "C" __global__ void qk_rope(element* heads, int queries, int keys, int values, const int* positions,
                                   const float* rope_table, const float* q_gain, const float* k_gain, float eps,
                                   const int* slots, element* pool_k, element* pool_v) {
    constexpr int half = HEAD_DIM / 2, lanes = HEAD_DIM / 8, side = 32 / lanes;
    const long long token = blockIdx.x;
    const int lane = threadIdx.x & 31, warps = blockDim.x >> 5, count = queries + keys + values;
    const int part = lane % lanes, pair = part % (lanes / 2);
    const float sign = part < lanes / 2 ? -1.0f : 1.0f;
    // No kernel of the step writes these: they are there before the one in front has ended.
    const float* rotation = rope_table + (long long)positions[token] * HEAD_DIM + 8 * pair;
    const int slot = slots ? slots[token] : -1;
    float cosine[8], sine[8];
    for (int n = 0; n < 8; n++) {
        cosine[n] = rotation[n];
        sine[n] = rotation[half + n];
    }
    begin();
    for (int first = (threadIdx.x >> 5) * side; first < count; first += warps * side) {
        const int own = first + lane / lanes, head = min(own, count - 1);  // lanes stay together for the exchange
        element* at = heads + (token * count + head) * HEAD_DIM + 8 * part;
        Eight bits = *(const Eight*)at;
        float x[8], other[8];
        float squares = 0.0f;
        for (int n = 0; n < 8; n++) {
            x[n] = widen(bits.v[n]);
            squares += x[n] * x[n];
        }
        for (int step = lanes / 2; step; step >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, step);
        const bool rotated = head < queries + keys;
        const float* gain = head < queries ? q_gain : rotated ? k_gain : 0;
        if (gain) {
            const float scale = rsqrtf(squares / (float)HEAD_DIM + eps);
            for (int n = 0; n < 8; n++) x[n] *= scale * gain[8 * part + n];
        }
        for (int n = 0; n < 8; n++) other[n] = __shfl_xor_sync(0xffffffffu, x[n], lanes / 2);
        if (own >= count) continue;
        if (rotated) {
            for (int n = 0; n < 8; n++) bits.v[n] = narrow(x[n] * cosine[n] + sign * other[n] * sine[n]);
            *(Eight*)at = bits;
        }
        if (slot < 0 || head < queries) continue;
        element* to = rotated ? pool_k + ((long long)slot * keys + head - queries) * HEAD_DIM
                            : pool_v + ((long long)slot * values + head - queries - keys) * HEAD_DIM;
        *(Eight*)(to + 8 * part) = bits;
    }
}
#else
extern "C" __global__ void qk_rope(element* heads, int queries, int keys, int values, const int* positions,
                                   const float* rope_table, const float* q_gain, const float* k_gain, float eps,
                                   const int* slots, element* pool_k, element* pool_v) {
    begin();
    constexpr int half = HEAD_DIM / 2;
    constexpr int each = (half + 31) / 32;
    const long long token = blockIdx.x;
    const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    const int count = queries + keys + values;
    const float* rotation = rope_table + (long long)positions[token] * HEAD_DIM;
    const int slot = slots ? slots[token] : -1;
    for (int head = threadIdx.x >> 5; head < count; head += warps) {
        element* at = heads + (token * count + head) * HEAD_DIM;
        if (head >= queries + keys) {
            if (slot < 0) continue;
            element* to = pool_v + ((long long)slot * values + (head - queries - keys)) * HEAD_DIM;
            for (int i = lane; i < HEAD_DIM; i += 32) to[i] = at[i];
            continue;
        }
        float a[each], b[each];
        float squares = 0.0f;
        for (int n = 0; n < each; n++) {
            const int i = lane + 32 * n;
            a[n] = i < half ? widen(at[i]) : 0.0f;
            b[n] = i < half ? widen(at[i + half]) : 0.0f;
            squares += a[n] * a[n] + b[n] * b[n];
        }
        const float* gain = head < queries ? q_gain : k_gain;
        if (gain) {
            const float scale = rsqrtf(warp_sum(squares) / (float)HEAD_DIM + eps);
            for (int n = 0; n < each; n++) {
                const int i = lane + 32 * n;
                if (i >= half) continue;
                a[n] *= scale * gain[i];
                b[n] *= scale * gain[i + half];
            }
        }
        element* to = 0;
        if (head >= queries && slot >= 0) to = pool_k + ((long long)slot * keys + (head - queries)) * HEAD_DIM;
        for (int n = 0; n < each; n++) {
            const int i = lane + 32 * n;
            if (i >= half) continue;
            const float cosine = rotation[i], sine = rotation[i + half];
            const element x = narrow(a[n] * cosine - b[n] * sine), y = narrow(b[n] * cosine + a[n] * sine);
            at[i] = x;
            at[i + half] = y;
            if (to) {
                to[i] = x;
                to[i + half] = y;
            }
        }
    }
}
#endif

// out[row][i] = silu(gate_up[row][i]) * gate_up[row][inner + i]. Eight values a thread; where inner is a multiple of 4
// only, the rows are not aligned for that, and a thread takes its eight in two parts.
template <class Some> __device__ __forceinline__ void gate_some(const element* gate, const element* up, element* out) {
    constexpr int count = sizeof(Some) / sizeof(element);
    const Some g = *(const Some*)gate, u = *(const Some*)up;
    Some y;
    for (int n = 0; n < count; n++) {
        const float v = widen(((const element*)&g)[n]);
        ((element*)&y)[n] = narrow(v / (1.0f + expf(-v)) * widen(((const element*)&u)[n]));
    }
    *(Some*)out = y;
}

extern "C" __global__ void silu_gate(const element* gate_up, int inner, element* out) {
    begin();
    const int i = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    if (i >= inner) return;
    const element* gate = gate_up + (long long)blockIdx.x * 2 * inner + i;
    element* to = out + (long long)blockIdx.x * inner + i;
    if (inner % 8 == 0) {
        gate_some<Eight>(gate, gate + inner, to);
    } else {
        gate_some<element4>(gate, gate + inner, to);
        if (i + 4 < inner) gate_some<element4>(gate + 4, gate + inner + 4, to + 4);
    }
}
