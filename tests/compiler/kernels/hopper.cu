// What sm_90a alone has: warpgroup products, bulk copies, stmatrix, mbarriers.
using u32 = unsigned;
using u64 = unsigned long long;

extern "C" __global__ void __launch_bounds__(128, 1) warpgroup(float* out, u64 a, u64 b) {
  float c[36] = {};
#define C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 1;"
               : C4(0) : "l"(a), "l"(b));
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0,%1,%2,%3}, %4, %5, 1, 1, 1;"
               : C4(0) : "l"(a), "l"(b));
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,"
      "%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35}, %36, %37, 1, 1, 1, 0, 1;"
      : C4(0), C4(4), C4(8), C4(12), C4(16), C4(20), C4(24), C4(28), C4(32) : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;");
  for (int i = 0; i < 36; ++i) out[128 * i + threadIdx.x] = c[i];
}

extern "C" __global__ void bulk(unsigned char* g, u32 n) {
  extern __shared__ __align__(128) unsigned char s[];
  u32 const a = u32(__cvta_generic_to_shared(s));
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(a));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 4096;" ::"r"(a));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(a + 1024), "l"(g), "r"(n), "r"(a));
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %1};" ::"r"(a), "r"(n));
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];"
               ::"r"(a + 1024), "l"(g), "r"(n), "r"(a));
}
