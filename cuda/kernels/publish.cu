// The last kernel of a step: its results into the host's memory, then its number, for which the host polls.

__device__ __forceinline__ void reach_host() {
#ifdef __CUDA_ARCH__
    __threadfence_system();  // this thread's writes are visible to the host before the block's next ones
#endif
}

__device__ __forceinline__ u64 device_clock() {
#ifdef __CUDA_ARCH__
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
#else
    return 0;
#endif
}

// One block. `ticket` has the step's number and the index of its area among `areas`; an area has `stride` ints, of
// which the first four are its header: number, unused, the clock in nanoseconds.
extern "C" __global__ void publish(const int* source, int count, const int* ticket, int stride, int areas, int* host) {
    begin();
    const int index = ticket[1];
    if (index < 0 || index >= areas || count > stride - 4) return;
    volatile int* area = host + (long long)index * stride;
    for (int i = threadIdx.x; i < count; i += blockDim.x) area[4 + i] = source[i];
    reach_host();
    __syncthreads();
    if (threadIdx.x != 0) return;
    *(volatile u64*)(area + 2) = device_clock();
    reach_host();
    area[0] = ticket[0];
}
