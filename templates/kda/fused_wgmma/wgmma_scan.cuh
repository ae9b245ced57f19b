// The chain of chunks by wgmma (sm_90a): a warpgroup carries 64 columns of the state, and reads an image once for all.
#pragma once
#include "kda/fused_wgmma/panels.cuh"
#include "kda/chunks/scan.cuh"
#include "register.cuh"
#include "wgmma.cuh"

// Of Scan, whose warps have 16 columns each, the products with images are others: keys and queries are one operand in
// shared memory, and so are the updates.
template <class T, int K, int C>
struct WgmmaScan : Scan<T, K, C, 16, 1, 1, 0, PanelOperands> {
  using Base = Scan<T, K, C, 16, 1, 1, 0, PanelOperands>;
  using typename Base::Image, typename Base::Operand, typename Base::State, typename Base::Tokens;
  using Panels = PanelRows<K, C>;
  static_assert(C == 16, "one operand A holds what a chunk adds");
  using Recalled = float[2 * C / 8 * 4];  // X, then O: [values, tokens], a warp's rows
  using Channels = typename Base::A[K / 16];  // the state as operands A
  static constexpr int kAccumulators = K / 2;  // of the state

  // v of a warp's columns, which it copies itself, a lane 16 bytes: [tokens, 16 columns] of a chunk.
  using Values = typename Base::Values;
  static constexpr int kValueBytes = C * Values::kRowBytes;
  static_assert(kValueBytes == 32 * 16, "a lane copies 16 bytes");

  // `g_v`: where the lane's share of the chunk is, from first_value on.
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

  // r = Sᵀ (-k~ and q~)ᵀ, begun: with finish_recall, what the state recalls for the chunk's keys and queries. The
  // operands `r_a` are copies of the state, which decays meanwhile.
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
    wgmma_wait<1>();  // for ptxas: what it waited for before these products it does not count as done beside them
    fence_registers(flat(r_s));
    decay(r_s, smem, lane);
  }
  // The values that the chunk brings join what is recalled for its keys.
  static __device__ __forceinline__ void finish_recall(Recalled& r, Tokens const& values) {
    wgmma_wait<0>();
    fence_registers(r);
    Base::add(news(r), values);
  }

  // Sᵀ += xᵀ updates, begun.
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
