// A warpgroup's 64 rows of a pass: products and sums are issued and awaited separately, with the computations in
// between.
#pragma once
#include "flash_attention_backward/slope.cuh"
#include "flash_attention_backward/panels/pass.cuh"
#include "fragment.cuh"
#include "math.cuh"
#include "register.cuh"
#include "thread.cuh"

enum Value { kShift, kDelta };  // values of a query besides its row: see row.cuh

template <class Pass>
struct Rows {
  using T = typename Pass::T;
  template <int kRole>
  using ColumnsOf = typename Pass::template ColumnsOf<kRole>;
  static constexpr int N = Pass::kTile;
  using Scores = float[N / 2];          // [64, N]
  using Operand = uint32_t[N / 16][4];  // scores, rounded
  template <int kRole>
  using SumsOf = float[Pass::template kDim<kRole> / 2];  // [64, D] or [64, DV]
  using Sums = SumsOf<kFirst>;
  using Scale = typename ScaleOf<Pass::kSoftcap>::Type;

  unsigned char* smem;
  Barriers<Pass> barriers;
  int owner;           // index of this warpgroup's 64 rows in the block
  int warpgroup;
  Scale scale;
  float values[2][2];  // if rows are queries: shift and delta of the thread's two rows
  Slot<Pass::kStages> at;

  __device__ __forceinline__ void await(TensorRole role, Slot<Pass::kStages> const& slot) const {
    mbarrier_wait(barriers.full(role, slot.stage), slot.parity);
  }
  // Issues own · passingᵀ as one group.
  template <TensorRole kRole>
  __device__ __forceinline__ void issue_product(Scores& r) {
    using Columns = ColumnsOf<kRole>;
    await(kRole, at);
    uint32_t const s = shared_address(smem), s_own = s + Pass::own(kRole, owner);
    uint32_t const s_tile = s + Pass::tile(kRole, at.stage);
    fence_registers(r);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Pass::template kDim16<kRole>; k += 16)
      wgmma_m64k16<T>(r, Columns::template k_major<64>(s_own, k), Columns::template k_major<N>(s_tile, k), k > 0);
    wgmma_commit();
  }
  // Issues r_sum += A · passing as one group.
  template <TensorRole kRole>
  __device__ __forceinline__ void issue_sum(SumsOf<kRole>& r_sum, Operand const& r_a, int stage) {
    uint32_t const s_tile = shared_address(smem) + Pass::tile(kRole, stage);
    fence_registers(r_sum);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N; k += 16)
      wgmma_m64k16<T, Major::kMN>(r_sum, r_a[k / 16], ColumnsOf<kRole>::template mn_major<N>(s_tile, k, 0), true);
    wgmma_commit();
  }
  // Waits until all but the newest kInFlight groups are complete, and with them `r`.
  template <int kInFlight, int R>
  __device__ __forceinline__ static void wait(float (&r)[R]) {
    wgmma_wait<kInFlight>();
    fence_registers(r);
  }
  // Called by all lanes, since each reads the values, which share a stage of the first ring, by itself.
  __device__ __forceinline__ void release(TensorRole role, int stage) const {
    if (role == kFirst && Pass::kOwnsKeys) __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty(role, stage));
  }

  // Row values for the thread's columns 8 n + lane % 4 · 2 and the next, in its row h.
  __device__ __forceinline__ float2 value(Value kind, int n, int h) const {
    if constexpr (!Pass::kOwnsKeys) return {values[kind][h], values[kind][h]};
    int const pair = kind * N + n * 8 + threadIdx.x % 4 * 2;
    return *reinterpret_cast<float2 const*>(smem + Pass::values(at.stage) + 4 * pair);
  }
  // Applies the tanh of a Softcap to scores, before they are masked.
  __device__ __forceinline__ void cap(Scores& r_s) const {
    if constexpr (Pass::kSoftcap)
#pragma unroll
      for (int i = 0; i < N / 2; i += 2) cap_two(r_s[i], r_s[i + 1], scale.inner);
  }
  // Converts scores to P = 2^(scale · S - shift).
  __device__ __forceinline__ void exponentiate(Scores& r_s) const {
    for_each_two(r_s, [&](int i, float p0, float p1) {
      r_s[2 * i] = p0;
      r_s[2 * i + 1] = p1;
    });
  }
  // Converts scores to the factor of dS: P times the slope of the cap, which is 1 without a Softcap.
  __device__ __forceinline__ void exponentiate_for_ds(Scores& r_s) const {
    for_each_two(r_s, [&](int i, float p0, float p1) {
      r_s[2 * i] = p0 * slope(r_s[2 * i], scale);
      r_s[2 * i + 1] = p1 * slope(r_s[2 * i + 1], scale);
    });
  }
  // Computes the factor of dS, and also P, rounded.
  __device__ __forceinline__ void exponentiate_for_both(Operand& r_p, Scores& r_s) const {
    if constexpr (!Pass::kSoftcap) {
      exponentiate(r_s);
      round(r_p, r_s);
    } else {
      for_each_two(r_s, [&](int i, float p0, float p1) {
        r_p[i / 4][i % 4] = pack<T>(p0, p1);
        r_s[2 * i] = p0 * slope(r_s[2 * i], scale);
        r_s[2 * i + 1] = p1 * slope(r_s[2 * i + 1], scale);
      });
    }
  }
  static __device__ __forceinline__ void round(Operand& r_p, Scores const& r_s) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) r_p[i / 4][i % 4] = pack<T>(r_s[2 * i], r_s[2 * i + 1]);
  }
  // dS = P ∘ (product - delta), rounded; r_p is P times the slope if scores are capped.
  __device__ __forceinline__ void differentiate(Operand& r_ds, Scores const& r_p, Scores const& r_product) const {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      float2 const delta = value(kDelta, i / 2, i % 2);
      float const ds0 = r_p[2 * i] * (r_product[2 * i] - delta.x);
      float const ds1 = r_p[2 * i + 1] * (r_product[2 * i + 1] - delta.y);
      r_ds[i / 4][i % 4] = pack<T>(ds0, ds1);
    }
  }

 private:
  // Calls use(i, P of the thread's scores 2 i and 2 i + 1), which may overwrite them.
  template <class Use>
  __device__ __forceinline__ void for_each_two(Scores& r_s, Use const& use) const {
    float const factor = factor_of(scale);
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      float2 const shift = value(kShift, i / 2, i % 2);
      float const p0 = exp2_approx(fmaf(r_s[2 * i], factor, -shift.x));
      float const p1 = exp2_approx(fmaf(r_s[2 * i + 1], factor, -shift.y));
      use(i, p0, p1);
    }
    fence_registers(r_s);
  }
};
