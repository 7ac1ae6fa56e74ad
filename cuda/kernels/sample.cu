// One token out of a row, by the definitions of readouts/draw.py and in their order:
// temperature, top-k, top-p, min-p, then the inverse of the cumulative distribution, in order of ids, at `uniform`.
//
// A cluster of blocks has a row: each block copies its part into shared memory once, by 16-byte loads, and all passes
// run there. The tokens that top-k and top-p keep are a prefix of the row in order of (logit falling, id rising): all
// above one key and the first ids of those that equal it. Radix selection finds that key two bits a pass, from counts
// (top-k) or sums of weights (top-p). Where at most LIST tokens are left they are gathered, in order of ids, and
// sorted in the first block; only rows that keep more need passes over sums.
//
// Sums are float64 in an order that depends on vocab, the cluster and the block alone; no atomics.

constexpr int LIST = 1024;

struct Block {
    u64 parts[4][32];       // of the block's warps
    u64 block_parts[2][4];  // read by the cluster's other blocks; two in turn: a reduction has one cluster barrier
    u64 results[2][4];      // of the cluster
    double weights[LIST];
    float values[LIST];
    int ids[LIST];
    u16 rank[LIST];   // in order of (logit falling, id rising)
    u16 order[LIST];  // its inverse
};

struct Team {
    Block* block;
    int size, rank, turn;
};

struct Add {
    static constexpr u64 none = 0;
    template <class T> static __device__ __forceinline__ T of(T a, T b) { return a + b; }
};
struct Most {
    static constexpr u64 none = 0;
    template <class T> static __device__ __forceinline__ T of(T a, T b) { return a > b ? a : b; }
};

// Every value over all threads of the cluster, to all of them. T has 8 bytes; calls must not diverge.
template <class Op, int N, class T> __device__ void reduce(Team& team, T (&v)[N]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    T* block_part = (T*)team.block->block_parts[team.turn];
    T* result = (T*)team.block->results[team.turn];
    team.turn ^= 1;
    for (int n = 0; n < N; n++) {
        for (int step = 16; step; step >>= 1) v[n] = Op::of(v[n], __shfl_xor_sync(0xffffffffu, v[n], step));
        if (lane == 0) ((T*)team.block->parts[n])[warp] = v[n];
    }
    __syncthreads();
    if (warp == 0)
        for (int n = 0; n < N; n++) {
            T part = lane < warps ? ((T*)team.block->parts[n])[lane] : (T)Op::none;
            for (int step = 16; step; step >>= 1) part = Op::of(part, __shfl_xor_sync(0xffffffffu, part, step));
            if (lane == 0) block_part[n] = part;
        }
    cluster_sync();
    if (warp == 0)
        for (int n = 0; n < N; n++) {
            T part = lane < team.size ? peer(block_part, lane)[n] : (T)Op::none;
            for (int step = 16; step; step >>= 1) part = Op::of(part, __shfl_xor_sync(0xffffffffu, part, step));
            if (lane == 0) result[n] = part;
        }
    __syncthreads();
    for (int n = 0; n < N; n++) v[n] = result[n];
}

template <class T> __device__ __forceinline__ T warp_before(T mine, T& total) {
    const int lane = threadIdx.x & 31;
    T sum = mine;
    for (int step = 1; step < 32; step <<= 1) {
        const T other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    total = __shfl_sync(0xffffffffu, sum, 31);
    const T below = __shfl_up_sync(0xffffffffu, sum, 1);
    return lane ? below : (T)0;
}

// The sum of `mine` over the threads before this one, block after block of the cluster; `total` over all of them.
template <class T> __device__ T before(Team& team, T mine, T& total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    T* parts = (T*)team.block->parts[0];
    T* block_part = (T*)team.block->block_parts[team.turn];
    T* result = (T*)team.block->results[team.turn];
    team.turn ^= 1;
    T sum;
    const T within = warp_before(mine, sum);
    if (lane == 0) parts[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        const T below = warp_before(lane < warps ? parts[lane] : (T)0, sum);
        if (lane < warps) parts[lane] = below;
        if (lane == 0) block_part[0] = sum;
    }
    cluster_sync();
    if (warp == 0) {
        const T below = warp_before(lane < team.size ? peer(block_part, lane)[0] : (T)0, sum);
        if (lane == team.rank) result[0] = below;
        if (lane == 0) result[1] = sum;
    }
    __syncthreads();
    total = result[1];
    const T found = result[0] + parts[warp] + within;
    __syncthreads();  // `parts` may be written again
    return found;
}

struct Row {
    const float* part;  // logits of ids first .. first + count - 1, this block's
    int first, count, vocab, span;
    double most, temperature;

    __device__ __forceinline__ double weight(float logit) const { return exp(((double)logit - most) / temperature); }
    // A thread's own ids, in order; the number is odd, so that a warp's reads meet every bank of shared memory.
    __device__ __forceinline__ int begin() const { return min((int)threadIdx.x * span, count); }
    __device__ __forceinline__ int end() const { return min((int)(threadIdx.x + 1) * span, count); }
};

// The prefix that is kept: keys above `key`, and the first `ties` ids whose key equals it. {0, 0}: all.
struct Cut {
    u32 key;
    int ties;
};

// The largest key from which on at least `wanted` lies, and in `above` how much of it is above that key. Tokens weigh 1
// or, with MASS, as much as `kept` leaves them.
template <bool MASS> __device__ u32 select(Team& team, const Row& row, Cut kept, double wanted, double& above) {
    const double tied = MASS && kept.ties ? (double)kept.ties * row.weight(unordered(kept.key)) : 0.0;
    u32 key = 0;
    u64 limit = 1ull << 32;
    above = 0.0;
    for (int shift = 30; shift >= 0; shift -= 2) {
        double sums[3] = {0.0, 0.0, 0.0};  // from pivot 1, 2 and 3 to below `limit`
        int counts[3] = {0, 0, 0};
        const u32 one = key | 1u << shift, two = key | 2u << shift, three = key | 3u << shift;
        for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
            const float logit = row.part[i];
            const u32 own = ordered(logit);
            if (own < one || own >= limit) continue;
            if (!MASS) {
                counts[0]++;
                counts[1] += own >= two;
                counts[2] += own >= three;
            } else if (own > kept.key) {
                const double weight = row.weight(logit);
                sums[0] += weight;
                if (own >= two) sums[1] += weight;
                if (own >= three) sums[2] += weight;
            }
        }
        for (int n = 0; !MASS && n < 3; n++) sums[n] = (double)counts[n];
        reduce<Add>(team, sums);
        const u32 pivots[3] = {one, two, three};
        int digit = 0;
        for (int n = 0; n < 3; n++) {
            if (kept.key >= pivots[n] && kept.key < limit) sums[n] += tied;
            if (above + sums[n] >= wanted) digit = n + 1;
        }
        if (digit < 3) {
            above += sums[digit];
            limit = (u64)pivots[digit];
        }
        key |= (u32)digit << shift;
    }
    return key;
}

__device__ Cut cut_top_k(Team& team, const Row& row, int k) {
    double above;
    const u32 key = select<false>(team, row, Cut{0, 0}, (double)k, above);
    // Of equal logits the smaller ids, with any weights: weights underflow together.
    return Cut{key, k - (int)above};
}

__device__ Cut cut_top_p(Team& team, const Row& row, Cut kept, double wanted) {
    double above;
    const u32 key = select<true>(team, row, kept, fmax(wanted, 1e-300), above);
    const double weight = row.weight(unordered(key));  // every tie has the same
    int ties = 1;
    if (weight > 0.0) {
        const double missing = ceil((wanted - above) / weight);
        ties = missing < 1.0 ? 1 : missing > (double)row.vocab ? row.vocab : (int)missing;
    }
    if (key == kept.key) ties = min(ties, kept.ties);
    return Cut{key, ties};
}

// How many ids before this thread's own are above the cut (high half) and equal to it (low half).
__device__ u64 places(Team& team, const Row& row, Cut cut) {
    u64 mine = 0, total;
    for (int i = row.begin(); i < row.end(); i++) {
        const u32 own = ordered(row.part[i]);
        mine += own > cut.key ? 1ull << 32 : own == cut.key ? 1ull : 0ull;
    }
    return before(team, mine, total);
}

// The chosen id, or the last one with weight: `uniform` times the total may round up to the total.
__device__ int chosen_of(Team& team, int found, int last) {
    u64 both[2] = {found < 0 ? 0 : (u64)(0x7fffffff - found), (u64)(last + 1)};
    reduce<Most>(team, both);
    return both[0] ? 0x7fffffff - (int)both[0] : both[1] ? (int)both[1] - 1 : 0;
}

__device__ int draw(Team& team, const Row& row, Cut cut, double min_p, double uniform) {
    int tie = cut.key ? (int)(u32)places(team, row, cut) : 0;
    const int first_tie = tie;
    double mine = 0.0, total;
    int last = -1, found = -1;
    for (int i = row.begin(); i < row.end(); i++) {
        const u32 own = ordered(row.part[i]);
        if (own < cut.key || (own == cut.key && tie++ >= cut.ties)) continue;
        const double weight = row.weight(row.part[i]);
        if (!(weight > 0.0) || weight < min_p) continue;
        mine += weight;
        last = row.first + i;
    }
    double sum = before(team, mine, total);
    const double wanted = uniform * total;
    tie = first_tie;
    // A thread whose ids all come before the chosen one need not sum again.
    const int end = sum + mine * 1.000001 > wanted ? row.end() : 0;
    for (int i = row.begin(); i < end; i++) {
        const u32 own = ordered(row.part[i]);
        if (own < cut.key || (own == cut.key && tie++ >= cut.ties)) continue;
        const double weight = row.weight(row.part[i]);
        if (!(weight > 0.0) || weight < min_p) continue;
        sum += weight;
        if (sum > wanted) {
            found = row.first + i;
            break;
        }
    }
    return chosen_of(team, found, last);
}

// The kept tokens to the first block's list, in order of ids; at most LIST. Returns their number there, 0 elsewhere.
__device__ int gather_list(Team& team, const Row& row, Cut cut) {
    Block* to = peer(team.block, 0);
    const u64 at = places(team, row, cut);
    int above = (int)(at >> 32), tie = (int)(u32)at;
    u64 mine = 0, total;
    for (int i = row.begin(); i < row.end(); i++) {
        const float logit = row.part[i];
        const u32 own = ordered(logit);
        if (own < cut.key || (own == cut.key && tie++ >= cut.ties)) continue;
        // `tie` counts this one already where it is a tie.
        const int place = own == cut.key ? above + tie - 1 : above++ + min(tie, cut.ties);
        to->values[place] = logit;
        to->ids[place] = row.first + i;
        mine++;
    }
    before(team, mine, total);  // and a cluster barrier: the list is there
    return team.rank == 0 ? (int)total : 0;
}

// The draw among the `count` tokens of the list. `mass`: of all tokens that top-p counts, 0 for the list's own.
__device__ int draw_list(Team& team, const Row& row, int count, double mass, float top_p, double min_p, double uniform) {
    Block& list = *team.block;
    const int each = (count + blockDim.x - 1) / blockDim.x;
    const int first = min((int)threadIdx.x * each, count), last = min(first + each, count);
    double mine = 0.0, total;
    for (int i = first; i < last; i++) {
        list.weights[i] = row.weight(list.values[i]);
        mine += list.weights[i];
    }
    u64 cut[1] = {~0ull};
    if (top_p < 1.0f) {
        before(team, mine, total);
        const double wanted = (double)top_p * (mass > 0.0 ? mass : total);
        for (int i = first; i < last; i++) {
            int rank = 0;
            for (int j = 0; j < count; j++)
                rank += list.values[j] > list.values[i] || (list.values[j] == list.values[i] && j < i);
            list.rank[i] = (u16)rank;
            list.order[rank] = (u16)i;
        }
        __syncthreads();
        mine = 0.0;
        for (int i = first; i < last; i++) mine += list.weights[list.order[i]];
        double sum = before(team, mine, total);
        cut[0] = 0;  // stands for: at the end
        for (int i = first; i < last; i++) {
            sum += list.weights[list.order[i]];
            if (sum >= wanted) {
                cut[0] = (u64)(LIST - i);
                break;
            }
        }
        reduce<Most>(team, cut);
        cut[0] = cut[0] ? LIST - cut[0] + 1 : LIST;
    }
    mine = 0.0;
    int highest = -1, found = -1;
    for (int i = first; i < last; i++) {
        const double weight = list.weights[i];
        if ((top_p < 1.0f && list.rank[i] >= (int)cut[0]) || weight < min_p) list.weights[i] = 0.0;
        if (!(list.weights[i] > 0.0)) continue;
        mine += weight;
        highest = list.ids[i];
    }
    double sum = before(team, mine, total);
    for (int i = first; i < last && found < 0; i++) {
        sum += list.weights[i];
        if (sum > uniform * total && list.weights[i] > 0.0) found = list.ids[i];
    }
    return chosen_of(team, found, highest);
}

__device__ double mass_of(Team& team, const Row& row, Cut cut) {
    double sums[1] = {0.0};
    for (int i = threadIdx.x; i < row.count; i += blockDim.x)
        if (ordered(row.part[i]) > cut.key) sums[0] += row.weight(row.part[i]);
    reduce<Add>(team, sums);
    return sums[0] + (cut.ties ? (double)cut.ties * row.weight(unordered(cut.key)) : 0.0);
}

__device__ int sampled(Team& team, const Row& row, int top_k, float top_p, double min_p, double uniform) {
    Cut cut = {0, 0};
    const bool some = top_k > 0 && top_k < row.vocab;
    if (some) cut = cut_top_k(team, row, top_k);
    if (some ? top_k <= LIST : row.vocab <= LIST)
        return draw_list(team, row, gather_list(team, row, cut), 0.0, top_p, min_p, uniform);
    if (top_p < 1.0f) {
        const double mass = mass_of(team, row, cut);
        const Cut best = cut_top_k(team, row, LIST);
        if (mass_of(team, row, best) >= (double)top_p * mass)
            return draw_list(team, row, gather_list(team, row, best), mass, top_p, min_p, uniform);
        cut = cut_top_p(team, row, cut, (double)top_p * mass);
    }
    return draw(team, row, cut, min_p, uniform);
}

// This block's part of the row, in shared memory where it has `room` for it.
__device__ const float* part_of(const float* line, int count, float* copy, int room) {
    if (count > room) return line;
    if (((u64)line & 15) == 0) {
        for (int i = threadIdx.x; i < count / 4; i += blockDim.x) ((float4*)copy)[i] = ((const float4*)line)[i];
        for (int i = count / 4 * 4 + threadIdx.x; i < count; i += blockDim.x) copy[i] = line[i];
    } else {
        for (int i = threadIdx.x; i < count; i += blockDim.x) copy[i] = line[i];
    }
    __syncthreads();
    return copy;
}

// finite[row] == 0: the row is bad and gets token 0. One cluster a row, at most 32 blocks of at most 1,024 threads;
// dynamic shared memory: a Block, then `room` floats.
extern "C" __global__ void __launch_bounds__(1024) sample(const float* logits, int vocab, const float* temperature, const int* top_k,
                                  const float* top_p, const float* min_p, const double* uniform, const int* finite,
                                  int room, int* tokens) {
    begin();
    extern __shared__ float shared[];
    Team team = {(Block*)shared, cluster_size(), cluster_rank(), 0};
    const int at = blockIdx.x / team.size;
    if (!finite[at]) {  // the whole cluster leaves
        if (threadIdx.x == 0 && team.rank == 0) tokens[at] = 0;
        return;
    }
    const int each = ((vocab + team.size - 1) / team.size + 3) / 4 * 4;
    Row row;
    row.vocab = vocab;
    row.first = min(team.rank * each, vocab);
    row.count = min(each, vocab - row.first);
    row.span = (row.count + blockDim.x - 1) / blockDim.x | 1;
    row.part = part_of(logits + (long long)at * vocab + row.first, row.count, (float*)(team.block + 1), room);
    u64 best[1] = {0};  // (value, smaller id) sorts as (value, ~id)
    for (int i = threadIdx.x; i < row.count; i += blockDim.x) {
        const u64 own = (u64)ordered(row.part[i]) << 32 | (u32)~(row.first + i);
        if (own > best[0]) best[0] = own;
    }
    reduce<Most>(team, best);
    row.most = (double)unordered((u32)(best[0] >> 32));
    row.temperature = (double)temperature[at];
    int token = (int)~(u32)best[0];
    if (row.temperature > 0.0)
        token = sampled(team, row, top_k[at], top_p[at], (double)min_p[at], uniform[at]);
    if (threadIdx.x == 0 && team.rank == 0) tokens[at] = token;
    cluster_sync();  // no block leaves while another may read its shared memory
}
