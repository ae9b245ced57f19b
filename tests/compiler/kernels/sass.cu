// One kernel that uses each class of instruction that tuner/sass.py names and every arch from sm_80 on has.
using u32 = unsigned;

__device__ u32 shared_address(void const* p) { return u32(__cvta_generic_to_shared(p)); }

template <class T>
__device__ void through_shared(unsigned char* to, unsigned char const* from, unsigned char* s, int n) {
  int const t = threadIdx.x;
  reinterpret_cast<T*>(s)[t] = reinterpret_cast<T const*>(from)[t];
  __syncthreads();
  reinterpret_cast<T*>(to)[t] = reinterpret_cast<T*>(s)[n - t];
}

extern "C" __global__ void memory(unsigned char* to, unsigned char const* __restrict__ from, int n) {
  extern __shared__ __align__(16) unsigned char s[];
  through_shared<unsigned char>(to, from, s, n);
  through_shared<unsigned short>(to + 1024, from, s, n);
  through_shared<u32>(to + 2048, from, s, n);
  through_shared<uint2>(to + 4096, from, s, n);
  through_shared<uint4>(to + 8192, from, s, n);
  atomicAdd(reinterpret_cast<int*>(to), n);
  reinterpret_cast<int*>(to)[1] = atomicAdd(reinterpret_cast<int*>(s) + n, 1) + atomicCAS(reinterpret_cast<int*>(to) + 2, n, 7);
}

extern "C" __global__ void copies(unsigned char const* from, u32* to, int n) {
  extern __shared__ __align__(16) unsigned char s[];
  u32 const a = shared_address(s) + 16 * threadIdx.x;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(a), "l"(from));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(a + 4096), "l"(from), "r"(n));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(a), "l"(from + n));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(a + 8192), "l"(from));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(a + 8200), "l"(from));
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  u32 r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(a));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[1]), "=r"(r[2]) : "r"(a + r[0]));
  to[n] = r[0] + r[1] + r[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
  to[threadIdx.x] = r[0] ^ r[1] ^ r[2] ^ r[3];
}

#define MMA_16(shape, types, c, a, b)                                                                                \
  asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"  \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_8(shape, types, c, a, b)                                                                                 \
  asm volatile("mma.sync.aligned." shape ".row.col." types " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"           \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))

extern "C" __global__ void products(float* out, u32 const* in, int n) {
  u32 a[4], b[2];
  float c[4] = {};
  for (int i = 0; i < 4; ++i) a[i] = in[32 * i + threadIdx.x];
  for (int i = 0; i < 2; ++i) b[i] = in[32 * i + threadIdx.x + n];
  MMA_16("m16n8k16", "f32.bf16.bf16.f32", c, a, b);
  MMA_16("m16n8k16", "f32.f16.f16.f32", c, a, b);
  MMA_16("m16n8k8", "f32.tf32.tf32.f32", c, a, b);
  MMA_8("m16n8k8", "f32.bf16.bf16.f32", c, a, b);
  MMA_8("m16n8k8", "f32.f16.f16.f32", c, a, b);
  MMA_8("m16n8k4", "f32.tf32.tf32.f32", c, a, b);
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    MMA_16("m16n8k16", "f32.bf16.bf16.f32", c, a, b);
    MMA_16("m16n8k16", "f32.bf16.bf16.f32", c, a, b);
    MMA_8("m16n8k8", "f32.bf16.bf16.f32", c, a, b);
  }
  out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}

extern "C" __global__ void arithmetic(float* x, int* k, double* z, u32* h, float m, int n) {
  float const a = x[threadIdx.x], b = x[threadIdx.x + 1], c = x[threadIdx.x + 2];
  float r = fmaf(a, b, c) + a * m + fmaxf(a, fminf(b, 1.f)) + (a < b ? m : c) + exp2f(a) + __log2f(b) + __sinf(c) +
            __cosf(a) + rsqrtf(b) + sqrtf(c) + a / b + floorf(c) + float(k[n]), e;
  asm volatile("tanh.approx.f32 %0, %1;" : "=f"(e) : "f"(r));
  int i = k[threadIdx.x], j = k[threadIdx.x + 1];
  i = i * j + (i << 3) + (j >> n) + (i & j ^ n) + min(i, j) + max(i, 3) + abs(j) + __popc(j) + __clz(i) + i / j + int(b);
  i += __shfl_xor_sync(~0u, i, 1) + __ballot_sync(~0u, i > 3) + __reduce_add_sync(~0u, i) + __byte_perm(i, j, 0x1234);
  u32 p, q;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(p) : "f"(a), "f"(b));
  asm volatile("fma.rn.f16x2 %0, %1, %2, %1;" : "=r"(q) : "r"(p), "r"(i));
  asm volatile("add.f16x2 %0, %0, %1;" : "+r"(q) : "r"(p));
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(q));
  double d = z[n] * z[n + 1] + sqrt(z[n + 2]) + double(c);
  z[threadIdx.x] = d < 1 ? d : d * d + 2;
  h[threadIdx.x] = q;
  k[threadIdx.x] = i;
  x[threadIdx.x] = r + e;
  asm volatile("bar.sync 1, 64;\nmembar.gl;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(1024) spills(float* x) {
  float a[128], r = 0;
  for (int i = 0; i < 128; ++i) a[i] = x[1024 * i + threadIdx.x];
  __syncthreads();
  for (int k = 0; k < 8; ++k)
    for (int i = 0; i < 128; ++i) a[i] = a[i] * a[(7 * i + k) % 128] + a[(i + k) % 128];
  for (int i = 0; i < 128; ++i) r += a[i];
  x[threadIdx.x] = r;
}

// Pointers that are read from memory may lead to any memory, unless the compiler is told.
extern "C" __global__ void generic(unsigned char** given) {
  auto const p = *reinterpret_cast<unsigned char* volatile*>(given);
  uint4 const a = *reinterpret_cast<uint4*>(p);
  uint2 const b = *reinterpret_cast<uint2*>(p + 16);
  unsigned short const c = *reinterpret_cast<unsigned short*>(p + 24);
  *reinterpret_cast<uint4*>(p + 32) = make_uint4(a.w, a.z, a.y, a.x);
  *reinterpret_cast<uint2*>(p + 48) = make_uint2(b.y, b.x);
  p[56] = c;
  u32 const old = atomicCAS(reinterpret_cast<u32*>(p + 60), a.x, b.x);
  *reinterpret_cast<u32*>(p + 64) = old + atomicAdd(reinterpret_cast<u32*>(p + 68), c);
  atomicAdd(reinterpret_cast<float*>(p + 72), 1.f);
}
