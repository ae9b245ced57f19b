// One mma.sync a block, with registers as memory gives them: [block][lane][register].
#include <stdint.h>

template <int N>
__device__ void load(uint32_t (&r)[N], uint32_t const* from) {
  for (int i = 0; i < N; i++) r[i] = from[(blockIdx.x * 32 + threadIdx.x) * N + i];
}
template <int N>
__device__ void store(uint32_t* to, uint32_t const (&r)[N]) {
  for (int i = 0; i < N; i++) to[(blockIdx.x * 32 + threadIdx.x) * N + i] = r[i];
}

#define FULL(name, shape)                                                                                            \
  extern "C" __global__ void name(uint32_t const* a, uint32_t const* b, uint32_t const* c, uint32_t* out) {          \
    uint32_t x[4], y[2], d[4];                                                                                       \
    load(x, a), load(y, b), load(d, c);                                                                              \
    asm volatile("mma.sync.aligned." shape " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                  \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                    \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));                                \
    store(out, d);                                                                                                   \
  }
#define FULL_FP16(name, shape)                                                                              \
  extern "C" __global__ void name(uint32_t const* a, uint32_t const* b, uint32_t const* c, uint32_t* out) { \
    uint32_t x[4], y[2], d[2];                                                                              \
    load(x, a), load(y, b), load(d, c);                                                                     \
    asm volatile("mma.sync.aligned." shape " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"                     \
                 : "+r"(d[0]), "+r"(d[1])                                                                   \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));                       \
    store(out, d);                                                                                          \
  }

FULL(fp16_fp32, "m16n8k16.row.col.f32.f16.f16.f32")
FULL(bf16_fp32, "m16n8k16.row.col.f32.bf16.bf16.f32")
FULL(tf32_fp32, "m16n8k8.row.col.f32.tf32.tf32.f32")
FULL_FP16(fp16_fp16, "m16n8k16.row.col.f16.f16.f16.f16")
#if __CUDA_ARCH__ >= 890
FULL(e4m3_fp32, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
FULL(e5m2_fp32, "m16n8k32.row.col.f32.e5m2.e5m2.f32")
#endif
