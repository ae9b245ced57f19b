// The chain of chunks: a warp carries 16 kM columns of the state, transposed, as accumulators of mma.
#pragma once
#include "kda/image.cuh"
#include "kda/products.cuh"
#include "movmatrix.cuh"
#include "thread.cuh"

// Two accumulator tiles side by side are, rounded, one operand A: no lane gives anything to another.
__device__ __forceinline__ void pack_operand(uint32_t (&r_a)[4], float const (&left)[4], float const (&right)[4]) {
  r_a[0] = pack<bf16>(left[0], left[1]);
  r_a[1] = pack<bf16>(left[2], left[3]);
  r_a[2] = pack<bf16>(right[0], right[1]);
  r_a[3] = pack<bf16>(right[2], right[3]);
}

// T: of v and o. kM: tiles of 16 columns of the state a warp. kPartials: sums that the prediction is split into.
// kAhead: steps of 16 channels whose keys are loaded ahead.
template <class T, int K, int C, int BV, int kM, int kPartials, int kAhead>
struct Scan {
  using Image = ::Image<K, C>;
  using Rows = typename Image::Rows;
  using Values = ::Rows<BV, true>;
  static constexpr int kSubs = C / 16;
  static constexpr int kSteps = K / 16;
  static constexpr int kValues = Image::kBytes;  // where v lies in a stage
  static_assert(kAhead <= kSteps, "no more keys are ahead than there are");
  static constexpr int kStageBytes = kValues + C * Values::kRowBytes;

  using State = float[kM][K / 8][4];     // [values, channels]
  using Tokens = float[kM][C / 8][4];    // [values, tokens]
  using Operand = uint32_t[kSubs][kM][4];  // Tokens as operands A

  // What a chunk starts with, loaded while the one before it is finished: v, and the keys of the first steps.
  struct Ahead {
    uint32_t v[kM][kSubs][4];
    uint32_t keys[kAhead > 0 ? kAhead : 1][kSubs][4];
  };

  // Starts copying an image, and the values of a chunk of which `tokens` exist, into a stage: the share of one of
  // kLoaders threads.
  template <int kLoaders>
  static __device__ __forceinline__ void load_image(uint32_t s_stage, unsigned char const* g_image, int thread) {
#pragma unroll 4
    for (int i = thread; i < Image::kUsedBytes / 16; i += kLoaders) cp_async<16>(s_stage + 16 * i, g_image + 16 * i);
  }
  template <int kLoaders>
  static __device__ __forceinline__ void load_v(uint32_t s_stage, T const* g_v, int64_t stride, int tokens,
                                                int thread) {
#pragma unroll 4
    for (int i = thread; i < C * Values::kChunks; i += kLoaders) {
      int const row = i / Values::kChunks, chunk = i % Values::kChunks;
      bool const there = row < tokens;
      cp_async<16>(s_stage + kValues + Values::offset(row, chunk), g_v + (there ? row * stride : 0) + chunk * 8,
                   there ? 16 : 0);
    }
  }

  // `first`: the warp's first value.
  static __device__ __forceinline__ void load_ahead(Ahead& r, uint32_t s_stage, int first, int lane) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int sub = 0; sub < kSubs; ++sub) {
        int const row = sub * 16 + lane / 16 * 8 + lane % 8, chunk = first / 8 + 2 * m + lane / 8 % 2;
        ldmatrix_trans<4>(r.v[m][sub], s_stage + kValues + Values::offset(row, chunk));
      }
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load_keys(r.keys[step], s_stage + chunks_by_lane<Rows>(lane), step);
  }
  static __device__ __forceinline__ void load_keys(uint32_t (&r_b)[kSubs][4], uint32_t tile, int step) {
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub)
      ldmatrix<4>(r_b[sub], Rows::advance(tile, 2 * step) + Image::kKeys + sub * 16 * Rows::kRowBytes);
  }

  // r_x = vᵀ: the values that the chunk brings.
  static __device__ __forceinline__ void unpack_values(Tokens& r_x, Ahead const& r) {
#pragma unroll
    for (int i = 0; i < kM * kSubs * 4; ++i) {
      int const m = i / (kSubs * 4), sub = i / 4 % kSubs, e = i % 4;
      r_x[m][2 * sub + e / 2][e % 2 * 2] = unpack_lo<T>(r.v[m][sub][e]);
      r_x[m][2 * sub + e / 2][e % 2 * 2 + 1] = unpack_hi<T>(r.v[m][sub][e]);
    }
  }

  // r_x += Sᵀ (-k~)ᵀ and r_o = Sᵀ q~ᵀ: what the state recalls for the chunk's keys and queries. `midway` is called
  // between two steps.
  template <class Midway>
  static __device__ __forceinline__ void recall(Tokens& r_x, Tokens& r_o, State const& r_s, Ahead const& ahead,
                                                uint32_t s_stage, int lane, Midway midway) {
    uint32_t const tile = s_stage + chunks_by_lane<Rows>(lane);
    Tokens partial[kPartials > 1 ? kPartials - 1 : 1];
    clear(r_o);
#pragma unroll
    for (int p = 1; p < kPartials; ++p) clear(partial[p - 1]);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) midway();
      uint32_t r_a[kM][4], r_b[kSubs][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) pack_operand(r_a[m], r_s[m][2 * step], r_s[m][2 * step + 1]);
      Tokens& r_sum = step % kPartials == 0 ? r_x : partial[step % kPartials - (kPartials > 1)];
      if (step < kAhead) {
        multiply(r_sum, r_a, ahead.keys[step]);
      } else {
        load_keys(r_b, tile, step);
        multiply(r_sum, r_a, r_b);
      }
      multiply_rows<Rows>(r_o, r_a, Rows::advance(tile, 2 * step) + Image::kQueries);
    }
#pragma unroll
    for (int p = 1; p < kPartials; ++p) add(r_x, partial[p - 1]);
  }
  static __device__ __forceinline__ void multiply(Tokens& r, uint32_t const (&r_a)[kM][4],
                                                  uint32_t const (&r_b)[kSubs][4]) {
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub)
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16<bf16>(r[m][2 * sub], r_a[m], {r_b[sub][0], r_b[sub][1]});
        mma_m16n8k16<bf16>(r[m][2 * sub + 1], r_a[m], {r_b[sub][2], r_b[sub][3]});
      }
  }
  static __device__ __forceinline__ void add(Tokens& r, Tokens const& other) {
#pragma unroll
    for (int i = 0; i < kM * C / 2; ++i) {
      int const m = i / (C / 2), n = i / 4 % (C / 8);
      r[m][n][i % 4] += other[m][n][i % 4];
    }
  }

  static __device__ __forceinline__ void pack_tokens(Operand& r_a, Tokens const& r) {
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub)
#pragma unroll
      for (int m = 0; m < kM; ++m) pack_operand(r_a[sub][m], r[m][2 * sub], r[m][2 * sub + 1]);
  }

  // Sᵀ = Sᵀ e^G_last + xᵀ updates.
  static __device__ __forceinline__ void update(State& r_s, Operand const& r_a, unsigned char const* smem,
                                                uint32_t s_stage, int lane) {
    uint32_t const tile = s_stage + Image::kUpdates + rows_by_lane<Rows>(lane);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float4 const decay = *reinterpret_cast<float4 const*>(smem + Image::kDecay + step * 64 + lane % 4 * 16);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float(&left)[4] = r_s[m][2 * step], (&right)[4] = r_s[m][2 * step + 1];
        left[0] *= decay.x, left[1] *= decay.y, left[2] *= decay.x, left[3] *= decay.y;
        right[0] *= decay.z, right[1] *= decay.w, right[2] *= decay.z, right[3] *= decay.w;
      }
#pragma unroll
      for (int sub = 0; sub < kSubs; ++sub) {
        uint32_t r_b[4];
        ldmatrix_trans<4>(r_b, Rows::advance(tile, 2 * step) + sub * 16 * Rows::kRowBytes);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16<bf16>(r_s[m][2 * step], r_a[sub][m], {r_b[0], r_b[1]});
          mma_m16n8k16<bf16>(r_s[m][2 * step + 1], r_a[sub][m], {r_b[2], r_b[3]});
        }
      }
    }
  }

  // r_o += xᵀ (P T')ᵀ: what the chunk's tokens give to each other.
  static __device__ __forceinline__ void within(Tokens& r_o, Operand const& r_a, unsigned char const* smem, int lane) {
#pragma unroll
    for (int i = 0; i < kSubs; ++i)
#pragma unroll
      for (int j = 0; j <= i; ++j) {
        uint4 const b =
            *reinterpret_cast<uint4 const*>(smem + Image::kOutput + 512 * Image::block(i, j) + 16 * lane);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16<bf16>(r_o[m][2 * i], r_a[j][m], {b.x, b.y});
          mma_m16n8k16<bf16>(r_o[m][2 * i + 1], r_a[j][m], {b.z, b.w});
        }
      }
  }

  // o from [values, tokens] to rows of global memory; `g_o` is the chunk's first token, of which `tokens` exist.
  static __device__ __forceinline__ void store(T* g_o, int64_t stride, Tokens const& r_o, int tokens, int lane) {
#pragma unroll
    for (int n = 0; n < C / 8; ++n)
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        uint32_t const low = movmatrix_trans(pack<T>(r_o[m][n][0], r_o[m][n][1]));
        uint32_t const high = movmatrix_trans(pack<T>(r_o[m][n][2], r_o[m][n][3]));
        int const token = n * 8 + lane / 4;
        T* g_pair = g_o + token * stride + m * 16 + lane % 4 * 2;
        if (token < tokens) {
          *reinterpret_cast<uint32_t*>(g_pair) = low;
          *reinterpret_cast<uint32_t*>(g_pair + 8) = high;
        }
      }
  }

  // Element of the state [K, V] that a lane holds: offset from the warp's first column.
  static __device__ __forceinline__ int state_offset(int m, int n, int e, int lane, int V) {
    int const channel = n * 8 + lane % 4 * 2 + e % 2, value = m * 16 + lane / 4 + e / 2 * 8;
    return channel * V + value;
  }
  static __device__ __forceinline__ void load_state(State& r_s, float const* g_state, int V, int lane) {
#pragma unroll
    for (int i = 0; i < kM * K / 2; ++i) {
      int const m = i / (K / 2), n = i / 4 % (K / 8), e = i % 4;
      r_s[m][n][e] = g_state ? g_state[state_offset(m, n, e, lane, V)] : 0;
    }
  }
  static __device__ __forceinline__ void store_state(float* g_state, State const& r_s, int V, int lane) {
#pragma unroll
    for (int i = 0; i < kM * K / 2; ++i) {
      int const m = i / (K / 2), n = i / 4 % (K / 8), e = i % 4;
      if (g_state) g_state[state_offset(m, n, e, lane, V)] = r_s[m][n][e];
    }
  }
};
