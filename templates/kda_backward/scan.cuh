// The chain of chunks, forward for the state and in reverse for its gradient: a warp carries 16 kM columns, transposed,
// as accumulators of mma, and leaves what the gradients need in the order of their operands. kVFirst: of stored states.
#pragma once
#include "image.cuh"
#include "shared.cuh"
#include "tile.cuh"

template <class T, int K, int V, int BV, int kM, bool kVFirst>
struct Scan {
  using Image = ::Image<K>;
  using Rows = typename Image::Rows;
  using Values = ::Rows<BV, true>;
  static constexpr int kSteps = K / 16;
  static constexpr int kValueBytes = kChunk * Values::kRowBytes;
  static constexpr int kStates = K * V / 8;     // uint4 of a state in operand order, of one chunk
  static constexpr int kTokens = kChunk * V / 8;  // the same of a tensor of tokens and values

  using State = float[kM][K / 8][4];  // [values, channels]
  using Tokens = float[kM][2][4];     // [values, tokens]
  using Operand = uint32_t[kM][4];    // Tokens as operands A

  // ---- a stage: a part of an image, and the values of the block's columns

  // Starts copying kBytes of an image, and the rows of v or do, of which `tokens` exist: the share of one of kThreads.
  template <int kBytes, int kThreads>
  static __device__ __forceinline__ void load_stage(uint32_t s_stage, unsigned char const* g_image, T const* g_rows,
                                                    int64_t stride, int tokens) {
#pragma unroll
    for (int first = 0; first < kBytes / 16; first += kThreads) {
      int const i = first + threadIdx.x;
      if (first + kThreads <= kBytes / 16 || i < kBytes / 16) cp_async<16>(s_stage + 16 * i, g_image + 16 * i);
    }
    constexpr int kCopies = kChunk * Values::kChunks;
#pragma unroll
    for (int first = 0; first < kCopies; first += kThreads) {
      int const i = first + threadIdx.x, row = i / Values::kChunks, chunk = i % Values::kChunks;
      if (first + kThreads > kCopies && i >= kCopies) continue;
      bool const there = row < tokens;
      cp_async<16>(s_stage + kBytes + Values::offset(row, chunk), g_rows + (there ? row * stride : 0) + chunk * 8,
                   there ? 16 : 0);
    }
  }
  // The rows at `s_rows`, transposed, as they lie in memory; `first`: the warp's first column of the block.
  static __device__ __forceinline__ void load_values(Operand& r, uint32_t s_rows, int first, int lane) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
      ldmatrix_trans<4>(r[m], s_rows + Values::offset(lane / 16 * 8 + lane % 8, first / 8 + 2 * m + lane / 8 % 2));
  }

  // ---- products

  // r_x += Sᵀ tileᵀ. The operands of S are what the gradients read of it: on their way they go to `g_state`, if `keep`.
  static __device__ __forceinline__ void recall(Tokens& r_x, State const& r_s, uint32_t s_tile, uint4* g_state,
                                                bool keep, int lane) {
    uint32_t const tile = s_tile + chunks_by_lane<Rows>(lane);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t r_a[4], r_b[4];
      ldmatrix<4>(r_b, Rows::advance(tile, 2 * step));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        pack_rows(r_a, r_s[m][2 * step], r_s[m][2 * step + 1]);
        if (keep)
          g_state[(step * (V / 16) + m) * 32] = make_uint4(movmatrix_trans(r_a[0]), movmatrix_trans(r_a[1]),
                                                           movmatrix_trans(r_a[2]), movmatrix_trans(r_a[3]));
        mma_m16n8k16<bf16>(r_x[m][0], r_a, {r_b[0], r_b[1]});
        mma_m16n8k16<bf16>(r_x[m][1], r_a, {r_b[2], r_b[3]});
      }
    }
  }
  static __device__ __forceinline__ void decay(State& r_s, unsigned char const* stage, int lane) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float4 const decay = *reinterpret_cast<float4 const*>(stage + Image::kDecay + step * 64 + lane % 4 * 16);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float(&left)[4] = r_s[m][2 * step], (&right)[4] = r_s[m][2 * step + 1];
        left[0] *= decay.x, left[1] *= decay.y, left[2] *= decay.x, left[3] *= decay.y;
        right[0] *= decay.z, right[1] *= decay.w, right[2] *= decay.z, right[3] *= decay.w;
      }
    }
  }
  // Sᵀ += xᵀ tile.
  static __device__ __forceinline__ void update(State& r_s, Operand const& r_a, uint32_t s_tile, int lane) {
    uint32_t const tile = s_tile + rows_by_lane<Rows>(lane);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t r_b[4];
      ldmatrix_trans<4>(r_b, Rows::advance(tile, 2 * step));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16<bf16>(r_s[m][2 * step], r_a[m], {r_b[0], r_b[1]});
        mma_m16n8k16<bf16>(r_s[m][2 * step + 1], r_a[m], {r_b[2], r_b[3]});
      }
    }
  }
  // r *= beta of each token.
  static __device__ __forceinline__ void scale(Tokens& r, unsigned char const* stage, int lane) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float2 const beta = *reinterpret_cast<float2 const*>(stage + Image::kBeta + n * 32 + lane % 4 * 8);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        r[m][n][0] *= beta.x, r[m][n][1] *= beta.y;
        r[m][n][2] *= beta.x, r[m][n][3] *= beta.y;
      }
    }
  }
  static __device__ __forceinline__ void pack_tokens(Operand& r_a, Tokens const& r) {
#pragma unroll
    for (int m = 0; m < kM; ++m) pack_rows(r_a[m], r[m][0], r[m][1]);
  }

  // ---- the two steps; `g_state` and `g_tokens` are this lane's, and the state goes to memory if `keep`

  // The state before the chunk and its errors r = v - Sᵀ k go to memory; then Sᵀ becomes that after the chunk.
  static __device__ __forceinline__ void forward(State& r_s, unsigned char const* stage, uint32_t s_stage, int first,
                                                 uint4* g_state, bool keep, uint4* g_tokens, int lane) {
    Operand r_v, r_a;
    Tokens r_x;
    load_values(r_v, s_stage + Image::kForwardBytes, first, lane);
#pragma unroll
    for (int i = 0; i < kM * 4; ++i) {
      int const m = i / 4, e = i % 4;
      r_x[m][e / 2][e % 2 * 2] = unpack_lo<T>(r_v[m][e]);
      r_x[m][e / 2][e % 2 * 2 + 1] = unpack_hi<T>(r_v[m][e]);
    }
    recall(r_x, r_s, s_stage + Image::kKeys, g_state, keep, lane);
    pack_tokens(r_a, r_x);  // operand B where a row is a token, two tiles of values: the same registers, regrouped
#pragma unroll
    for (int m = 0; m < kM; ++m) g_tokens[m * 32] = make_uint4(r_a[m][0], r_a[m][2], r_a[m][1], r_a[m][3]);
    scale(r_x, stage, lane);
    pack_tokens(r_a, r_x);
    __syncwarp();  // what the update loads stays behind it: beside the widest states there are no registers for more
    decay(r_s, stage, lane);
    update(r_s, r_a, s_stage + Image::kUpdates, lane);
  }

  // The gradient after the chunk and y = Tᵀ dU go to memory, and beta y to dv; then dSᵀ becomes that before the chunk.
  static __device__ __forceinline__ void reverse(State& r_s, unsigned char const* stage, uint32_t s_stage, int first,
                                                 uint4* g_state, bool keep, uint4* g_tokens, T* g_dv, int64_t stride,
                                                 int tokens, int lane) {
    Operand r_do, r_a;
    Tokens r_y = {};
    load_values(r_do, s_stage + Image::kReverseBytes, first, lane);
    uint4 const output = *reinterpret_cast<uint4 const*>(stage + Image::kOutput + 16 * lane);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) r_do[m][e] = operand<T>(r_do[m][e]);
      mma_m16n8k16<bf16>(r_y[m][0], r_do[m], {output.x, output.y});
      mma_m16n8k16<bf16>(r_y[m][1], r_do[m], {output.z, output.w});
    }
    recall(r_y, r_s, s_stage + Image::kUpdates, g_state, keep, lane);
    pack_tokens(r_a, r_y);
#pragma unroll
    for (int m = 0; m < kM; ++m)
      g_tokens[m * 32] = make_uint4(movmatrix_trans(r_a[m][0]), movmatrix_trans(r_a[m][2]),
                                    movmatrix_trans(r_a[m][1]), movmatrix_trans(r_a[m][3]));
    scale(r_y, stage, lane);
    store_values(g_dv, stride, r_y, tokens, lane);
    pack_tokens(r_a, r_y);
    __syncwarp();  // as in forward
    decay(r_s, stage, lane);
    update(r_s, r_do, s_stage + Image::kQueries, lane);
    update(r_s, r_a, s_stage + Image::kKeys, lane);
  }

  // From [values, tokens] to rows of global memory; `g_rows`: the chunk's first token, the warp's first column.
  static __device__ __forceinline__ void store_values(T* g_rows, int64_t stride, Tokens const& r, int tokens,
                                                      int lane) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        uint32_t const low = movmatrix_trans(pack<T>(r[m][n][0], r[m][n][1]));
        uint32_t const high = movmatrix_trans(pack<T>(r[m][n][2], r[m][n][3]));
        int const token = n * 8 + lane / 4;
        T* g_pair = g_rows + token * stride + m * 16 + lane % 4 * 2;
        if (token < tokens) {
          *reinterpret_cast<uint32_t*>(g_pair) = low;
          *reinterpret_cast<uint32_t*>(g_pair + 8) = high;
        }
      }
  }

  // ---- states [K, V] or V-first [V, K] in fp32; null pointers are zeros, or not wanted

  static constexpr int kKStep = kVFirst ? 1 : V, kVStep = kVFirst ? K : 1;

  static __device__ __forceinline__ int state_offset(int i, int lane) {
    int const m = i / (K / 2), n = i / 4 % (K / 8), e = i % 4;
    return (n * 8 + lane % 4 * 2 + e % 2) * kKStep + (m * 16 + lane / 4 + e / 2 * 8) * kVStep;
  }
  static __device__ __forceinline__ void load_state(State& r_s, float const* g_state, int lane) {
#pragma unroll
    for (int i = 0; i < kM * K / 2; ++i)
      r_s[i / (K / 2)][i / 4 % (K / 8)][i % 4] = g_state ? g_state[state_offset(i, lane)] : 0;
  }
  static __device__ __forceinline__ void store_state(float* g_state, State const& r_s, int lane) {
#pragma unroll
    for (int i = 0; i < kM * K / 2; ++i)
      if (g_state) g_state[state_offset(i, lane)] = r_s[i / (K / 2)][i / 4 % (K / 8)][i % 4];
  }
};
