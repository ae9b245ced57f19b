// One small kernel for each primitive of sm_80, every result written out.
#include "atomic.cuh"
#include "cp_async.cuh"
#include "fp8.cuh"
#include "fragment.cuh"
#include "ldmatrix.cuh"
#include "math.cuh"
#include "mma.cuh"
#include "movmatrix.cuh"
#include "thread.cuh"
#include "types.cuh"

// ---- types

extern "C" __global__ void convert(float const* x, bf16* b, fp16* h, uint32_t* packed, float* back, int n) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  b[i] = from_float<bf16>(x[i]);
  h[i] = from_float<fp16>(x[i]);
  packed[2 * i] = pack<bf16>(x[i], -x[i]);
  packed[2 * i + 1] = pack<fp16>(x[i], -x[i]);
  back[4 * i] = unpack_lo<bf16>(packed[2 * i]);
  back[4 * i + 1] = unpack_hi<bf16>(packed[2 * i]);
  back[4 * i + 2] = unpack_lo<fp16>(packed[2 * i + 1]);
  back[4 * i + 3] = unpack_hi<fp16>(packed[2 * i + 1]);
}

extern "C" __global__ void widen(uint16_t const* bits, float* b, float* h, int n) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  b[i] = to_float(bf16{bits[i]});
  h[i] = to_float(fp16{bits[i]});
}

extern "C" __global__ void convert_bytes(uint32_t const* four, uint32_t* pairs, float* values, int n) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint32_t r[4][2];
  widen_bytes<fp16, 1>(r[0], four[i]);
  widen_bytes<fp16, 2>(r[1], four[i]);
  widen_bytes<bf16, 1>(r[2], four[i]);
  widen_bytes<bf16, 2>(r[3], four[i]);
  for (int j = 0; j < 8; j++) pairs[8 * i + j] = r[j / 2][j % 2];
  for (int j = 0; j < 4; j++) values[4 * i + j] = to_float(fp8_e4m3{uint8_t(four[i] >> 8 * j)});
}

extern "C" __global__ void approximate(float const* x, float* y, int n) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = exp2_approx(x[i]);
  y[n + i] = log2_approx(x[i]);
  y[2 * n + i] = rcp_approx(x[i]);
  y[3 * n + i] = tanh_approx(x[i]);
}

// ---- fragments: out[fragment][lane][8] is row * 256 + col, -1 where the fragment has no such element

template <class Fragment>
__device__ __forceinline__ void write_layout(int* out) {
  for (int e = 0; e < 8; e++) {
    bool const exists = e < Fragment::kElements;
    out[threadIdx.x * 8 + e] = exists ? Fragment::row(threadIdx.x, e) * 256 + Fragment::col(threadIdx.x, e) : -1;
  }
}

extern "C" __global__ void layouts(int* out) {
  write_layout<M16N8K16::A>(out);
  write_layout<M16N8K16::B>(out + 256);
  write_layout<M16N8K16::C>(out + 512);
  write_layout<M16N8K8::A>(out + 768);
  write_layout<M16N8K8::B>(out + 1024);
  write_layout<M16N8K8Tf32::A>(out + 1280);
  write_layout<M16N8K8Tf32::B>(out + 1536);
  write_layout<Matrix8x8>(out + 1792);
  write_layout<Matrix8x8Trans>(out + 2048);
}

// ---- ldmatrix: in [32][8]; out[variant][lane][4]: x1, x2, x4, and the same transposed

template <int N, bool TRANS>
__device__ __forceinline__ void load_and_write(uint32_t address, uint32_t* out) {
  uint32_t r[N];
  if constexpr (TRANS) ldmatrix_trans(r, address);
  else ldmatrix(r, address);
  for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = i < N ? r[i] : 0;
}

extern "C" __global__ void load_matrices(uint16_t const* in, uint32_t* out) {
  DYNAMIC_SHARED(smem);
  uint32_t const address = shared_address(smem) + threadIdx.x * 16;
  cp_async<16>(address, in + threadIdx.x * 8);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  load_and_write<1, false>(address, out);
  load_and_write<2, false>(address, out + 128);
  load_and_write<4, false>(address, out + 256);
  load_and_write<1, true>(address, out + 384);
  load_and_write<2, true>(address, out + 512);
  load_and_write<4, true>(address, out + 640);
}

// ---- mma: d [M][N] = c + a [M][K] b [K][N], fragments filled by the layouts from row-major memory; a product a block

template <class Fragment, class T, int R>
__device__ __forceinline__ void fill(uint32_t (&r)[R], T const* tile) {
  for (int i = 0; i < R; i++) {
    auto const bits = [&](int e) -> uint32_t {
      return tile[Fragment::row(threadIdx.x, e) * Fragment::kCols + Fragment::col(threadIdx.x, e)].bits;
    };
    r[i] = bits(2 * i) | bits(2 * i + 1) << 16;
  }
}
template <class Fragment, int R>
__device__ __forceinline__ void fill(uint32_t (&r)[R], float const* tile) {
  for (int e = 0; e < R; e++)
    r[e] = __float_as_uint(tile[Fragment::row(threadIdx.x, e) * Fragment::kCols + Fragment::col(threadIdx.x, e)]);
}

template <class Shape, class T, int A, int B, class Multiply>
__device__ __forceinline__ void product(T const* a, T const* b, float const* c, float* d, Multiply multiply) {
  uint32_t r_a[A], r_b[B];
  float r_d[4];
  a += blockIdx.x * Shape::kM * Shape::kK;
  b += blockIdx.x * Shape::kK * Shape::kN;
  c += blockIdx.x * Shape::kM * Shape::kN;
  d += blockIdx.x * Shape::kM * Shape::kN;
  fill<typename Shape::A>(r_a, a);
  fill<typename Shape::B>(r_b, b);
  auto const place = [](int e) { return Shape::C::row(threadIdx.x, e) * 8 + Shape::C::col(threadIdx.x, e); };
  for (int e = 0; e < 4; e++) r_d[e] = c[place(e)];
  multiply(r_d, r_a, r_b);
  for (int e = 0; e < 4; e++) d[place(e)] = r_d[e];
}

#define MMA_KERNEL(name, Shape, T, A, B, instruction)                                                     \
  extern "C" __global__ void name(T const* a, T const* b, float const* c, float* d) {                    \
    product<Shape, T, A, B>(a, b, c, d, [](auto& r_d, auto& r_a, auto& r_b) { instruction(r_d, r_a, r_b); }); \
  }
MMA_KERNEL(mma_k16_bf16, M16N8K16, bf16, 4, 2, mma_m16n8k16<bf16>)
MMA_KERNEL(mma_k16_fp16, M16N8K16, fp16, 4, 2, mma_m16n8k16<fp16>)
MMA_KERNEL(mma_k8_bf16, M16N8K8, bf16, 2, 1, mma_m16n8k8<bf16>)
MMA_KERNEL(mma_k8_fp16, M16N8K8, fp16, 2, 1, mma_m16n8k8<fp16>)
MMA_KERNEL(mma_k8_tf32, M16N8K8Tf32, float, 4, 2, mma_m16n8k8_tf32)

extern "C" __global__ void round_to_tf32(float const* x, uint32_t* y, int n) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = round_tf32(x[i]);
}

// ---- cp.async: 32 lanes copy with every count of bytes; out[lane][3][16]

extern "C" __global__ void copy_partly(uint8_t const* in, uint8_t* out) {
  DYNAMIC_SHARED(smem);
  int const lane = threadIdx.x;
  uint32_t const row = shared_address(smem) + lane * 48;
  cp_async<16>(row, in + lane * 16, lane % 17);
  cp_async_commit();
  cp_async<8>(row + 16, in + lane * 8, lane % 9);
  cp_async<8>(row + 24, in + lane * 8);
  cp_async_commit();
  cp_async<4>(row + 32, in + lane * 4, lane % 5);
  cp_async<4>(row + 36, in + lane * 4);
  cp_async<8>(row + 40, in, 0);
  cp_async_commit();
  cp_async_wait<2>();
  for (int i = 0; i < 16; i++) out[lane * 48 + i] = smem[lane * 48 + i];
  cp_async_wait<0>();
  for (int i = 16; i < 48; i++) out[lane * 48 + i] = smem[lane * 48 + i];
}

// ---- warps: out[test][lane]

extern "C" __global__ void warp_functions(int const* in, int* out) {
  int const lane = threadIdx.x, x = in[lane];
  unsigned const all = 0xffffffffu, half = lane < 16 ? 0xffffu : 0xffff0000u;
  int i = 0;
  auto const write = [&](int value) { out[i++ * 32 + lane] = value; };
  write(__shfl_sync(all, x, 5));
  write(__shfl_sync(all, x, lane + 7, 8));
  write(__shfl_up_sync(all, x, 3));
  write(__shfl_up_sync(all, x, 3, 16));
  write(__shfl_down_sync(all, x, 2));
  write(__shfl_down_sync(all, x, 2, 4));
  write(__shfl_xor_sync(all, x, 9));
  write(__shfl_xor_sync(half, x, 5, 16));
  write(__ballot_sync(all, x > 0));
  write(__any_sync(half, x == 3));
  write(__all_sync(half, x > -100));
  write(__reduce_add_sync(all, x));
  write(__reduce_add_sync(half, x));
  write(__reduce_min_sync(all, x));
  write(__reduce_max_sync(all, x));
  write(int(__reduce_max_sync(all, unsigned(x))));
  write(int(__reduce_and_sync(all, unsigned(x))));
  write(int(__reduce_or_sync(half, unsigned(x))));
  write(int(__reduce_xor_sync(all, unsigned(x))));
  if (lane < 8) write(__shfl_xor_sync(0xffu, 1, 1));  // a part of the warp may meet alone
}

// ---- blocks

// out[0]: a sum by __syncthreads; out[1 + i]: warp 0's squares, through a pair of named barriers.
extern "C" __global__ void block_functions(int const* in, int* out) {
  DYNAMIC_SHARED(smem);
  int* const sums = reinterpret_cast<int*>(smem);
  int* const box = sums + 32;
  int const tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  int const sum = __reduce_add_sync(0xffffffffu, in[tid]);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (tid == 0) {
    int total = 0;
    for (int w = 0; w < int(blockDim.x) / 32; w++) total += sums[w];
    out[0] = total;
  }
  if (warp == 0) {
    for (int round = 0; round < 4; round++) {
      named_barrier_sync(2, 64);  // the box is empty
      box[lane] = in[lane] * in[lane] + round;
      named_barrier_arrive(1, 64);
    }
  } else if (warp == 1) {
    for (int round = 0; round < 4; round++) {
      named_barrier_arrive(2, 64);
      named_barrier_sync(1, 64);
      out[1 + round * 32 + lane] = box[lane];
    }
  }
}

// A histogram in shared memory, added to the one in global memory; `tickets` hands every block another number.
extern "C" __global__ void count(int const* in, int* histogram, uint32_t* tickets, int* drawn, int n) {
  DYNAMIC_SHARED(smem);
  int* const bins = reinterpret_cast<int*>(smem);
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(bins + in[i], 1);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(histogram + threadIdx.x, bins[threadIdx.x]);
  if (threadIdx.x == 0) drawn[atomic_add_relaxed(tickets, 1)] = 1;
}

// ---- blocks that wait for each other

// Inclusive scan of [blocks][32] by chained look-back: a block waits for the one before its ticket.
extern "C" __global__ void scan(int const* in, int* out, uint32_t* ticket, int* prefix, uint32_t* ready) {
  DYNAMIC_SHARED(smem);
  int* const mine = reinterpret_cast<int*>(smem);
  if (threadIdx.x == 0) *mine = int(atomic_add_relaxed(ticket, 1));
  __syncwarp();
  int const part = *mine, lane = threadIdx.x;
  int x = in[part * 32 + lane];
  for (int step = 1; step < 32; step *= 2) {
    int const other = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += other;
  }
  int before = 0;
  if (part > 0) {
    while (load_acquire(ready + part - 1) == 0) backoff();
    before = prefix[part - 1];
  }
  out[part * 32 + lane] = before + x;
  if (lane == 31) {
    prefix[part] = before + x;
    store_release(ready + part, 1u);
  }
}

// The last block to arrive adds what all blocks wrote: fences, and a relaxed counter.
extern "C" __global__ void last_block(int const* in, int* partial, uint32_t* arrived, int* total) {
  int const sum = __reduce_add_sync(0xffffffffu, in[blockIdx.x * 32 + threadIdx.x]);
  int last = 0;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    __threadfence();
    if (last) {
      int all = 0;
      for (int b = 0; b < int(gridDim.x); b++) all += partial[b];
      *total = all;
    }
  }
}

// The same with one ordered atomic in place of the fences.
extern "C" __global__ void last_block_ordered(int const* in, int* partial, uint32_t* arrived, int* total) {
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = in[blockIdx.x];
    if (atomic_add_acq_rel(arrived, 1) == gridDim.x - 1) {
      int all = 0;
      for (int b = 0; b < int(gridDim.x); b++) all += partial[b];
      *total = all;
    }
  }
}

// The same, released by all and acquired by the last alone.
extern "C" __global__ void last_block_released(int const* in, int* partial, uint32_t* arrived, int* total) {
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = in[blockIdx.x];
    if (atomic_add_release(arrived, 1) == gridDim.x - 1 && load_acquire(arrived) == gridDim.x) {
      int all = 0;
      for (int b = 0; b < int(gridDim.x); b++) all += partial[b];
      *total = all;
    }
  }
}

// ---- movmatrix: in[lane] is a register of Matrix8x8; out the same of its transpose

extern "C" __global__ void transpose(uint32_t const* in, uint32_t* out) { out[threadIdx.x] = movmatrix_trans(in[threadIdx.x]); }
