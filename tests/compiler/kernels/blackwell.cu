// What sm_100a alone has: products that one thread issues, sums in tensor memory. Written to be read, not to be run.
using u32 = unsigned;
using u64 = unsigned long long;

__device__ void products(u32 tensor, u64 a, u64 b, u32 barrier, int tiles) {
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    for (int k = 0; k < 4; ++k)
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
          "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(tensor), "l"(a + k), "l"(b + k),
          "r"(0x8200490), "r"(k));
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier));
  }
}

extern "C" __global__ void elected(u64 a, u64 b, u32 tensor, u32 barrier, int tiles) {
  u32 chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, -1;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  if (chosen) products(tensor, a, b, barrier, tiles);
}

extern "C" __global__ void by_lane(u64 a, u64 b, u32 tensor, u32 barrier, int tiles) {
  if (threadIdx.x == 0) products(tensor, a, b, barrier, tiles);
}

// Exponentials of eight columns a pass, beside a warp that issues products.
extern "C" __global__ void softmax(float* out, u64 a, u64 b, u32 tensor, u32 barrier, int tiles, float most) {
  float sum = 0;
  if (threadIdx.x < 32) {
    u32 chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, -1;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    if (chosen) products(tensor, a, b, barrier, tiles);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    float p[8];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
                 : "=f"(p[0]), "=f"(p[1]), "=f"(p[2]), "=f"(p[3]), "=f"(p[4]), "=f"(p[5]), "=f"(p[6]), "=f"(p[7])
                 : "r"(tensor));
    asm volatile("tcgen05.wait::ld.sync.aligned;");
    if (__any_sync(~0u, p[0] > most)) {  // rare: what a maximum that grew costs
      for (int k = 0; k < 8; ++k) sum *= __cosf(p[k]);
    }
    for (int k = 0; k < 8; ++k) {
      asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(p[k]));
      sum += p[k];
    }
    asm volatile("tcgen05.st.sync.aligned.32x32b.x2.b32 [%0], {%1,%2};" ::"r"(tensor), "f"(p[0] + p[1]), "f"(p[2]));
    asm volatile("tcgen05.wait::st.sync.aligned;");
  }
  out[threadIdx.x] = sum;
}

extern "C" __global__ void memory(u32* out) {
  __shared__ u32 address;
  u32 const place = u32(__cvta_generic_to_shared(&address));
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 256;" ::"r"(place));
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  asm volatile("tcgen05.fence::before_thread_sync;");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;");
  *out = address;
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 256;" ::"r"(address));
}
