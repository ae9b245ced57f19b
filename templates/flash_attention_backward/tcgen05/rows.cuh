// A thread's row of a pass on tcgen05, between products and sums: P and dS of its columns of a tile.
#pragma once
#include "flash_attention/tcgen05/softmax.cuh"
#include "flash_attention_backward/slope.cuh"
#include "flash_attention_backward/tcgen05/pass.cuh"
#include "register.cuh"

// Values of a query besides its row, negated, since both are added: see row.cuh.
enum Value { kShift, kDelta };

// The mask of a thread's row.
template <class Pass>
struct RowSight {
  int bound;  // the row is a key: the first query that attends it; a query: number of attended keys
  int whole;  // the bound of the warp's row with the fewest attended pairs

  // Query i attends the keys up to i + reach.
  __device__ __forceinline__ RowSight(int row, int seq_q, int seq_k) {
    int const reach = seq_k - seq_q, first = row - int(threadIdx.x % 32);
    if constexpr (Pass::kOwnsKeys) {
      bound = row - reach;
      whole = Pass::kCausal ? first + 31 - reach : 0;
    } else {
      bound = Pass::kCausal ? min(seq_k, row + reach + 1) : seq_k;
      whole = Pass::kCausal ? min(seq_k, first + reach + 1) : seq_k;
    }
  }
  // Masks the scores of the columns from `first` on.
  template <int N>
  __device__ __forceinline__ void apply(float (&r_s)[N], int first) const {
    if (Pass::kOwnsKeys ? first >= whole : first + N <= whole) return;
    int const beyond = bound - first;
#pragma unroll
    for (int e = 0; e < N; ++e)
      if (Pass::kOwnsKeys ? e < beyond : e >= beyond) r_s[e] = -kInfinity;
  }
};

template <class Pass, class Scale>
struct RowThread {
  using T = typename Pass::T;
  static constexpr int N = Pass::kColumnsOfThread;
  static constexpr int kChunk = N % 16 ? 8 : 16;  // columns that are loaded or stored at once
  // Columns that are computed at once: with P and other long-lived values, there are no registers for more of a
  // product.
  static constexpr int kPiece = N > 56 ? 16 : N;
  using Piece = float[kPiece];

  unsigned char* smem;
  uint32_t tensor;  // the row tile's columns, in the warp's lanes
  TensorBarriers<Pass> barriers;
  int i, first;  // the row tile; the thread's first column of a tile
  Scale scale;
  float values[2];  // used if queries are owned
  Slot<Pass::kStages> at;
  int parity = 0;  // parity of the number of processed tiles

  // Processes the next tile, which starts at column `column`.
  __device__ __forceinline__ void pass(RowSight<Pass> const& sight, int column) {
    float r_p[N];
    uint32_t r_operand[N / 2];
    // the values are read from this stage
    if (Pass::kOwnsKeys) mbarrier_wait(barriers.full(kFirst, at.stage), at.parity);
    await_product(kFirst);
#pragma unroll
    for (int e = 0; e < N; e += kPiece) {
      Piece& r_s = reinterpret_cast<Piece&>(r_p[e]);
      load<kFirst>(r_s, e);
      if (e + kPiece == N) tell(barriers.product_read(kFirst, i));
      if constexpr (Pass::kSoftcap)
#pragma unroll
        for (int c = 0; c < kPiece; c += 2) cap_two(r_s[c], r_s[c + 1], scale.inner);
      sight.apply(r_s, column + first + e);
      exponentiate(r_operand, r_s, e);
    }
    if (Pass::kOwnsKeys) store_operand<kSecond>(r_operand);
    await_product(kSecond);
#pragma unroll
    for (int e = 0; e < N; e += kPiece) {
      Piece r_product;
      load<kSecond>(r_product, e);
      if (e + kPiece == N) tell(barriers.product_read(kSecond, i));
      differentiate(r_operand, reinterpret_cast<Piece&>(r_p[e]), r_product, e);
    }
    store_operand<kFirst>(r_operand);
    at.advance();
    parity ^= 1;
  }
  // Waits until the sum has consumed all processed tiles.
  __device__ __forceinline__ void await_sum(int role) const {
    mbarrier_wait(barriers.operand_taken(role, i), parity ^ 1);
    tcgen05_fence_after_thread_sync();
  }

 private:
  __device__ __forceinline__ void await_product(int role) const {
    mbarrier_wait(barriers.product_full(role, i), parity);
    tcgen05_fence_after_thread_sync();
  }
  template <int kRole>
  __device__ __forceinline__ void load(Piece& r, int begin) const {
#pragma unroll
    for (int c = 0; c < kPiece; c += kChunk)
      tcgen05_ld_32x32b(reinterpret_cast<float (&)[kChunk]>(r[c]), tensor + Pass::product(kRole) + first + begin + c);
    tcgen05_wait_ld();
    fence_registers(r);
  }
  template <int kRole>
  __device__ __forceinline__ void store_operand(uint32_t const (&r)[N / 2]) const {
    await_sum(kRole);
#pragma unroll
    for (int e = 0; e < N / 2; e += kChunk / 2)
      tcgen05_st_32x32b(tensor + Pass::operand(kRole) + first / 2 + e,
                        reinterpret_cast<uint32_t const(&)[kChunk / 2]>(r[e]));
    tcgen05_wait_st();
    tell(barriers.operand_full(kRole, i));
  }
  // Signals that the warp's accesses to tensor memory are complete, to the thread that issues products.
  __device__ __forceinline__ void tell(uint32_t barrier) const {
    tcgen05_fence_before_thread_sync();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
  }

  // Values of the thread's columns e to e + 3.
  __device__ __forceinline__ float4 four(Value kind, int e) const {
    if constexpr (!Pass::kOwnsKeys) return {values[kind], values[kind], values[kind], values[kind]};
    return *reinterpret_cast<float4 const*>(smem + Pass::values(at.stage) + 4 * (kind * Pass::kTile + first + e));
  }
  // Converts scores of the columns from `begin` on to P = 2^(scale · S - shift), or with a Softcap to P times their
  // slope; also P, rounded.
  __device__ __forceinline__ void exponentiate(uint32_t (&r_rounded)[N / 2], Piece& r_s, int begin) const {
    float2 const factor = both(factor_of(scale));
#pragma unroll
    for (int c = 0; c < kPiece; c += 4) {
      int const e = begin + c;
      float4 const shift = four(kShift, e);
      exponentiate_two(r_rounded[e / 2], r_s[c], r_s[c + 1], factor, {shift.x, shift.y}, e);
      exponentiate_two(r_rounded[e / 2 + 1], r_s[c + 2], r_s[c + 3], factor, {shift.z, shift.w}, e + 2);
    }
  }
  // Every kPolynomial-th pair is computed with polynomials (0: none).
  __device__ __forceinline__ void exponentiate_two(uint32_t& r_p, float& s0, float& s1, float2 factor, float2 shift,
                                                   int e) const {
    bool const polynomial = Pass::kPolynomial && e / 2 % (Pass::kPolynomial ? Pass::kPolynomial : 1) == 0;
    float2 const x = fma_pair({s0, s1}, factor, shift);
    float2 const p = polynomial ? exp2_polynomial(x) : float2{exp2_approx(x.x), exp2_approx(x.y)};
    r_p = pack<T>(p.x, p.y);
    float2 const sloped = Pass::kSoftcap ? mul_pair(p, {slope(s0, scale), slope(s1, scale)}) : p;
    s0 = sloped.x;
    s1 = sloped.y;
  }
  // dS = P ∘ (product - delta), rounded, for the columns from `begin` on.
  __device__ __forceinline__ void differentiate(uint32_t (&r_ds)[N / 2], Piece const& r_p, Piece const& r_product,
                                                int begin) const {
#pragma unroll
    for (int c = 0; c < kPiece; c += 4) {
      int const e = begin + c;
      float4 const delta = four(kDelta, e);
      r_ds[e / 2] = differentiate_two({r_p[c], r_p[c + 1]}, {r_product[c], r_product[c + 1]}, {delta.x, delta.y});
      r_ds[e / 2 + 1] =
          differentiate_two({r_p[c + 2], r_p[c + 3]}, {r_product[c + 2], r_product[c + 3]}, {delta.z, delta.w});
    }
  }
  static __device__ __forceinline__ uint32_t differentiate_two(float2 p, float2 product, float2 delta) {
    float2 const ds = mul_pair(p, add_pair(product, delta));
    return pack<T>(ds.x, ds.y);
  }
};
