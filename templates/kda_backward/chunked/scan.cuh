// The chain of chunks, forward for the state and in reverse for its gradient: a warp carries 16 kM columns, transposed,
// in mma accumulators, and stores the values that gradients needs in the order of its operands. kVFirst: whether stored
// states are V-first.
#pragma once
#include "kda_backward/chunked/image.cuh"

template <class T, int K, int V, int BV, int kM, bool kVFirst, class Operands>
struct Scan {
  using Image = ::Image<K, Operands>;
  using Matrix = typename Operands::template Matrix<K>;
  using Values = typename Operands::template Values<T, BV>;
  using Block = typename Operands::Block;
  static constexpr int kSteps = K / 16;
  static constexpr int kValueBytes = kChunk * Values::kRowBytes;
  static constexpr int kStates = K * V / 256 * Operands::kBlock;     // uint4 of a state in operand order, per chunk
  // uint4 of a tensor of tokens and values, per chunk
  static constexpr int kTokens = V / 16 * Operands::kBlock;
  // Whether there are enough registers for one branch around all stores.
  static constexpr bool kOneBranch = Operands::kBlock == 32 || (K <= 128 && !Operands::kSplit);

  using State = float[kM][K / 8][4];  // [values, channels]
  using Tokens = float[kM][2][4];     // [values, tokens]
  using Operand = Block[kM];          // Tokens

  // A stage contains a part of an image, and the values of the block's columns. Starts copying one thread's share, of
  // kThreads, of kBytes of an image, and of the rows of v or do, of which `tokens` exist.
  template <int kBytes, int kThreads>
  static __device__ __forceinline__ void load_stage(uint32_t s_stage, unsigned char const* g_image, T const* g_rows,
                                                    int64_t stride, int tokens) {
    // With few warps, each copies much: all of it at once would need registers that the widest states use.
#pragma unroll 32
    for (int first = 0; first < kBytes / 16; first += kThreads) {
      int const i = first + threadIdx.x;
      if (first + kThreads <= kBytes / 16 || i < kBytes / 16) cp_async<16>(s_stage + 16 * i, g_image + 16 * i);
    }
    constexpr int kElements = 16 / sizeof(T), kRowCopies = BV / kElements, kCopies = kChunk * kRowCopies;
#pragma unroll
    for (int first = 0; first < kCopies; first += kThreads) {
      int const i = first + threadIdx.x, row = i / kRowCopies, chunk = i % kRowCopies;
      if (first + kThreads > kCopies && i >= kCopies) continue;
      bool const there = row < tokens;
      cp_async<16>(s_stage + kBytes + Values::offset(row, chunk),
                   g_rows + (there ? row * stride : 0) + chunk * kElements, there ? 16 : 0);
    }
  }

  // r_x += Sᵀ matrixᵀ. The operands of S are those that gradients reads: they are also stored to `g_state` if `keep`.
  // With one branch around all of them, stores are scheduled between dependent products.
  static __device__ __forceinline__ void recall(Tokens& r_x, State const& r_s, unsigned char const* matrix,
                                                uint4* g_state, bool keep, int lane) {
    auto const all = [&](bool kept) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Block r_a, r_b;
        Matrix::rows(r_b, matrix, step, lane);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          Operands::pack(r_a, r_s[m][2 * step], r_s[m][2 * step + 1]);
          uint4* g_block = g_state + (step * (V / 16) + m) * Operands::kBlock;
          if (kept) Operands::template store_transposed<Side::kRight>(g_block, r_a, lane);
          Operands::multiply(r_x[m][0], r_x[m][1], r_a, r_b);
        }
      }
    };
    if (!kOneBranch)
      all(keep);
    else if (keep)
      all(true);
    else
      all(false);
  }
  // A contribution to the update of a state: xᵀ matrix.
  struct Product {
    Operand const& x;
    unsigned char const* matrix;
  };
  // Sᵀ = Sᵀ e^G_last + products. With split operands their sum is separate, and rounded to nearest when it is added to
  // the state: tensor cores truncate, which would accumulate over chunks.
  template <class... Products>
  static __device__ __forceinline__ void update(State& r_s, unsigned char const* s_decay, int lane,
                                                Products const&... products) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float4 const x = *reinterpret_cast<float4 const*>(s_decay + step * 64 + lane % 4 * 16);
      float const decay[4] = {x.x, x.y, x.z, x.w};
      float r_sum[kM][2][4];
#pragma unroll
      for (int i = 0; i < kM * 8; ++i) {
        float& s = r_s[i / 8][2 * step + i / 4 % 2][i % 4];
        s *= decay[i / 4 % 2 * 2 + i % 2];
        r_sum[i / 8][i / 4 % 2][i % 4] = Operands::kSplit ? 0 : s;
      }
      (add_product(r_sum, products, step, lane), ...);
#pragma unroll
      for (int i = 0; i < kM * 8; ++i) {
        float &s = r_s[i / 8][2 * step + i / 4 % 2][i % 4], sum = r_sum[i / 8][i / 4 % 2][i % 4];
        s = Operands::kSplit ? s + sum : sum;
      }
    }
  }
  static __device__ __forceinline__ void add_product(float (&r)[kM][2][4], Product const& product, int step, int lane) {
    Block r_b;
    Matrix::columns(r_b, product.matrix, step, lane);
#pragma unroll
    for (int m = 0; m < kM; ++m) Operands::multiply(r[m][0], r[m][1], product.x[m], r_b);
  }
  // r *= beta of each token.
  static __device__ __forceinline__ void scale(Tokens& r, unsigned char const* s_beta, int lane) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float2 const beta = *reinterpret_cast<float2 const*>(s_beta + n * 32 + lane % 4 * 8);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        r[m][n][0] *= beta.x, r[m][n][1] *= beta.y;
        r[m][n][2] *= beta.x, r[m][n][3] *= beta.y;
      }
    }
  }
  static __device__ __forceinline__ void pack_tokens(Operand& r_a, Tokens const& r) {
#pragma unroll
    for (int m = 0; m < kM; ++m) Operands::pack(r_a[m], r[m][0], r[m][1]);
  }

  // The two steps: `g_state` and `g_tokens` are this lane's addresses, and the state is stored if `keep`.

  // Stores the state before the chunk and the errors; then Sᵀ becomes that after the chunk.
  static __device__ __forceinline__ void forward(State& r_s, unsigned char const* stage, int first, uint4* g_state,
                                                 bool keep, uint4* g_tokens, int lane) {
    typename Values::Registers r_v[kM];
    Operand r_a;
    Tokens r_x;
#pragma unroll
    for (int m = 0; m < kM; ++m) Values::load(r_v[m], stage + Image::kForwardBytes, first + 16 * m, lane);
#pragma unroll
    for (int m = 0; m < kM; ++m) Values::unpack(r_x[m][0], r_x[m][1], r_v[m]);
    recall(r_x, r_s, stage + Image::kKeyRows, g_state, keep, lane);
    pack_tokens(r_a, r_x);
    store_errors(g_tokens, r_a, stage + Image::kErrors, lane);
    scale(r_x, stage + Image::kBeta, lane);
    pack_tokens(r_a, r_x);
    __syncwarp();  // loads of the update must not be hoisted: with the widest states there are no registers for more
    update(r_s, stage + Image::kDecay, lane, Product{r_a, stage + Image::kUpdateColumns});
  }

  // The error of the value that every token recalls from the state, from r = v - Sᵀ k; not on the critical path of the
  // chain.
  static __device__ __forceinline__ void store_errors(uint4* g_tokens, Operand const& r_r, unsigned char const* s_errors,
                                                      int lane) {
    Block r_inverse, r_e;
    auto const* s_inverse = reinterpret_cast<uint4 const*>(s_errors) + Operands::lane_slot(lane);
    Operands::template load<Side::kLeft>(r_inverse, s_inverse);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      Tile left = {}, right = {};
      Operands::multiply(left, right, r_inverse, r_r[m]);
      Operands::pack(r_e, left, right);
      Operands::template store<Side::kLeft>(g_tokens + m * Operands::kBlock, r_e);
    }
  }

  // Stores the gradient after the chunk and y = Tᵀ dU, and beta y to dv; then dSᵀ becomes that before the chunk.
  static __device__ __forceinline__ void reverse(State& r_s, unsigned char const* stage, int first, uint4* g_state,
                                                 bool keep, uint4* g_tokens, T* g_dv, int64_t stride, int tokens,
                                                 int lane) {
    unsigned char const* image = stage - Image::kReverseFirst;
    Operand r_do, r_a;
    Tokens r_y = {};
    Block r_output;
    typename Values::Registers r_values[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) Values::load(r_values[m], stage + Image::kReverseBytes, first + 16 * m, lane);
    auto const* s_output = reinterpret_cast<uint4 const*>(image + Image::kOutput) + Operands::lane_slot(lane);
    Operands::template load<Side::kRight>(r_output, s_output);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      Values::pack(r_do[m], r_values[m]);
      Operands::multiply(r_y[m][0], r_y[m][1], r_do[m], r_output);
    }
    recall(r_y, r_s, image + Image::kUpdateRows, g_state, keep, lane);
    pack_tokens(r_a, r_y);
#pragma unroll
    for (int m = 0; m < kM; ++m)
      Operands::template store_transposed<Side::kLeft>(g_tokens + m * Operands::kBlock, r_a[m], lane);
    scale(r_y, image + Image::kBeta, lane);
#pragma unroll
    for (int m = 0; m < kM; ++m) Values::store(g_dv + 16 * m, stride, r_y[m][0], r_y[m][1], tokens, lane);
    pack_tokens(r_a, r_y);
    __syncwarp();  // loads must not be hoisted, as in forward
    update(r_s, image + Image::kDecay, lane, Product{r_do, image + Image::kQueryColumns},
           Product{r_a, image + Image::kKeyColumns});
  }

  // States are [K, V] or V-first [V, K] in fp32; null pointers mean zeros, or no output.
  static constexpr int kKStep = kVFirst ? 1 : V, kVStep = kVFirst ? K : 1;

  static __device__ __forceinline__ int state_offset(int i, int lane) {
    int const m = i / (K / 2), n = i / 4 % (K / 8), e = i % 4;
    return (n * 8 + lane % 4 * 2 + e % 2) * kKStep + (m * 16 + Operands::value(lane, e)) * kVStep;
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
