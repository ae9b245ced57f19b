// The chain of chunks on wgmma (sm_90a): a warpgroup carries 64 columns of the state, and reads an image once for all
// of them.
#pragma once
#include "kda/fused_wgmma/panels.cuh"
#include "kda/chunks/scan.cuh"
#include "register.cuh"
#include "wgmma.cuh"

// Differs from Scan, whose warps have 16 columns each, in the products with images: keys and queries are one operand in
// shared memory, and so are the updates.
template <class T, int K, int C>
struct WgmmaScan : Scan<T, K, C, 16, 1, 1, 0, PanelOperands> {
  using Base = Scan<T, K, C, 16, 1, 1, 0, PanelOperands>;
  using typename Base::Image, typename Base::Operand, typename Base::State, typename Base::Tokens;
  using Panels = PanelRows<K, C>;
  static_assert(C == 16, "one operand A holds what a chunk adds");
  using Recalled = float[2 * C / 8 * 4];  // X, then O: [values, tokens], a warp's rows
  using Channels = typename Base::A[K / 16];  // the state as operands A
  static constexpr int kAccumulators = K / 2;  // accumulators of the state

  // v of a warp's columns, which the warp copies itself, 16 bytes per lane: [tokens, 16 columns] of a chunk.
  using Values = typename Base::Values;
  static constexpr int kValueBytes = C * Values::kRowBytes;
  static_assert(kValueBytes == 32 * 16, "a lane copies 16 bytes");

  // `g_v`: start of the lane's share of the chunk, from first_value.
  static __device__ __forceinline__ T const* first_value(T const* g_v, int64_t stride, int lane) {
    return g_v + lane / 2 * stride + lane % 2 * 8;
  }
  static __device__ __forceinline__ void copy_values(uint32_t s_values, T const* g_v, int tokens, int lane) {
    bool const there = lane / 2 < tokens;
    cp_async<16>(s_values + Values::offset(lane / 2, lane % 2), g_v, there ? 16 : 0);
  }
  static __device__ __forceinline__ void load_values(Tokens& r, uint32_t s_values, int lane) {
    typename Values::Registers bits;
    Values::load(bits, nullptr, s_values, 0, lane);
    Values::unpack(r, bits);
  }

  static __device__ __forceinline__ Tokens& news(Recalled& r) { return reinterpret_cast<Tokens&>(r[0]); }
  static __device__ __forceinline__ Tokens& outputs(Recalled& r) { return reinterpret_cast<Tokens&>(r[C / 2]); }
  static __device__ __forceinline__ float (&flat(State& r_s))[kAccumulators] {
    return reinterpret_cast<float(&)[kAccumulators]>(r_s);
  }

  // Issues r = Sᵀ (-k~ and q~)ᵀ: after finish_recall, the values recalled from the state for the chunk's keys and
  // queries. The operands `r_a` are copies of the state, which decays meanwhile.
  static __device__ __forceinline__ void recall(Recalled& r, Channels& r_a, State& r_s, unsigned char const* smem,
                                                uint32_t s_stage, int lane) {
#pragma unroll
    for (int step = 0; step < K / 16; ++step) PanelOperands::operand(r_a[step], r_s[0], step);
    uint64_t const keys = wgmma_descriptor(s_stage + Image::kKeys, 16, 1024, Swizzle::k128B);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < K / 16; ++step)
      wgmma_m64k16<bf16>(r, r_a[step], wgmma_advance(keys, step / 4 * Panels::kPanelStep + step % 4 * 32), step > 0);
    wgmma_commit();
    wgmma_wait<1>();  // for ptxas: it does not treat groups awaited before these products as complete while they run
    fence_registers(flat(r_s));
    decay(r_s, smem, lane);
  }
  // Adds the values of the chunk to the values recalled for its keys.
  static __device__ __forceinline__ void finish_recall(Recalled& r, Tokens const& values) {
    wgmma_wait<0>();
    fence_registers(r);
    Base::add(news(r), values);
  }

  // Issues Sᵀ += xᵀ updates.
  static __device__ __forceinline__ void update(State& r_s, Operand const& r_a, uint32_t s_stage) {
    uint64_t const updates =
        wgmma_descriptor(s_stage + Image::kUpdates, Panels::kPanelStep, 1024, Swizzle::k128B);
    fence_registers(flat(r_s));
    wgmma_fence();
    wgmma_m64k16<bf16, Major::kMN>(flat(r_s), r_a[0][0], updates, true);
    wgmma_commit();
  }
  static __device__ __forceinline__ void finish_update(State& r_s) {
    wgmma_wait<0>();
    fence_registers(flat(r_s));
  }

 private:
  static __device__ __forceinline__ void decay(State& r_s, unsigned char const* smem, int lane) {
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      float4 const decay = *reinterpret_cast<float4 const*>(smem + Image::kDecay + step * 64 + lane % 4 * 16);
      float const r_decay[4] = {decay.x, decay.y, decay.z, decay.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) r_s[0][2 * step + i / 4][i % 4] *= r_decay[i / 4 * 2 + i % 2];
    }
  }
};
