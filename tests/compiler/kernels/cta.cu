// Kernels whose warps' ways depend on parameters, barriers and roles: what a replay of whole CTAs has to follow.
using u32 = unsigned;
using u64 = unsigned long long;

__device__ void product(float (&c)[4], u64 a, u64 b) {
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;");
}

// As many products as a division of 64 bits, a remainder and a block's number say.
extern "C" __global__ __launch_bounds__(128) void trips(float* out, u64 n, u32 d, u64 a, u64 b) {
  float c[4] = {};
  u32 const count = u32(n >> 33) / d + u32(n) % 7 + blockIdx.x;
  for (u32 i = 0; i < count; ++i) product(c, a, b);
  if (out != nullptr) out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}

__device__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// One thread of the first warpgroup arrives `arrivals` times, and the second warpgroup waits `waits` times.
extern "C" __global__ __launch_bounds__(256) void handshake(float* out, u32 arrivals, u32 waits, u64 a, u64 b) {
  __shared__ u64 barrier;
  u32 const address = u32(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address));
  __syncthreads();
  if (threadIdx.x < 128) {
    if (threadIdx.x == 0)
      for (u32 i = 0; i < arrivals; ++i) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
  } else {
    float c[4] = {};
    for (u32 i = 0; i < waits; ++i) {
      wait(address, i & 1);
      product(c, a, b);
    }
    out[threadIdx.x] = c[0];
  }
}

// As many stores to shared memory as a fence has to wait for.
extern "C" __global__ __launch_bounds__(128) void fenced(u32 count, float* out) {
  __shared__ float values[128];
  for (u32 i = 0; i < count; ++i) {
    reinterpret_cast<float volatile*>(values)[threadIdx.x] = float(i);
    __threadfence_block();
  }
  if (out != nullptr) out[threadIdx.x] = values[0];
}

// Warps that wait for what memory says.
extern "C" __global__ __launch_bounds__(128) void by_data(u32 const* in) {
  asm volatile("bar.sync %0, %1;" ::"r"(in[0] & 7), "r"(128));
}
