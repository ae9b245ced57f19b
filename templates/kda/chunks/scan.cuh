// The chain of chunks: a warp carries 16 kM columns of the state, transposed, in mma accumulators.
#pragma once
#include "kda/chunks/image.cuh"
#include "thread.cuh"

// T: dtype of v and o. kM: tiles of 16 columns of the state per warp. kPartials: accumulators that the prediction is
// split into. kAhead: steps of 16 channels whose keys are loaded ahead.
template <class T, int K, int C, int BV, int kM, int kPartials, int kAhead, class Operands = Bf16Operands>
struct Scan {
  using Image = ::Image<K, C, Operands>;
  using Folds = typename Operands::template Folds<K, C>;
  using Rows = typename Image::Rows;
  using Values = typename Operands::template Values<T, BV, C, kM>;
  using A = typename Operands::A;
  using B = typename Operands::B;
  static constexpr int kTiles = kM;
  static constexpr int kSubs = C / 16;
  static constexpr int kSteps = K / Operands::kStep;
  static constexpr int kSubSteps = 16 / Operands::kStep;
  static constexpr int kTokenSteps = kSubs * kSubSteps;
  static constexpr int kValues = Image::kBytes;  // offset of v in a stage
  static_assert(kAhead <= kSteps, "no more keys are ahead than there are");
  static constexpr int kStageBytes = kValues + C * Values::kRowBytes;

  using State = float[kM][K / 8][4];     // [values, channels]
  using Tokens = float[kM][C / 8][4];    // [values, tokens]
  using Operand = A[kTokenSteps][kM];    // Tokens as operands A

  // The first inputs of a chunk, loaded while the previous one is completed: v, and the keys of the first steps.
  struct Ahead {
    typename Values::Registers v;
    B keys[kAhead > 0 ? kAhead : 1][kSubs];
  };

  // Starts copying an image, and the values of a chunk, of which `tokens` exist, into a stage: the share of one of
  // kLoaders threads.
  template <int kLoaders>
  static __device__ __forceinline__ void load_image(uint32_t s_stage, unsigned char const* g_image, int thread) {
#pragma unroll 4
    for (int i = thread; i < Image::kUsedBytes / 16; i += kLoaders) cp_async<16>(s_stage + 16 * i, g_image + 16 * i);
  }
  template <int kLoaders>
  static __device__ __forceinline__ void load_v(uint32_t s_stage, T const* g_v, int64_t stride, int tokens,
                                                uint32_t thread) {
    constexpr int kElements = 16 / sizeof(T), kChunks = BV / kElements;
    if constexpr (kLoaders % kChunks == 0 && C * kChunks % kLoaders == 0) {
      if (tokens >= C) {  // true for most chunks: a thread has the same columns of every kLoaders / kChunks-th row
        uint32_t const row = thread / kChunks, chunk = thread % kChunks;
        T const* g = g_v + row * stride + chunk * kElements;
#pragma unroll
        for (uint32_t first = 0; first < C; first += kLoaders / kChunks) {
          cp_async<16>(s_stage + kValues + Values::offset(row + first, chunk), g);
          g += kLoaders / kChunks * stride;
        }
        return;
      }
    }
#pragma unroll
    for (int pass = 0; pass < ceil_div(C * kChunks, kLoaders); ++pass) {
      uint32_t const i = thread + pass * kLoaders, row = i / kChunks, chunk = i % kChunks;
      if (C * kChunks % kLoaders != 0 && i >= C * kChunks) break;
      bool const there = int(row) < tokens;
      cp_async<16>(s_stage + kValues + Values::offset(row, chunk), g_v + (there ? row * stride : 0) + chunk * kElements,
                   there ? 16 : 0);
    }
  }

  // `first`: the warp's first value.
  static __device__ __forceinline__ void load_ahead(Ahead& r, unsigned char const* stage, uint32_t s_stage, int first,
                                                    int lane) {
    Values::load(r.v, stage + kValues, s_stage + kValues, first, lane);
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load_keys(r.keys[step], s_stage + keys_by_lane(lane), step);
  }
  static __device__ __forceinline__ uint32_t keys_by_lane(int lane) {
    return Operands::template columns_by_lane<Rows>(lane);
  }
  static __device__ __forceinline__ void load_keys(B (&r_b)[kSubs], uint32_t tile, int step) {
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub)
      ldmatrix<4>(r_b[sub], Rows::advance(tile, 2 * step) + Image::kKeys + sub * 16 * Rows::kRowBytes);
  }

  // r_x = vᵀ: the values of the chunk.
  static __device__ __forceinline__ void unpack_values(Tokens& r_x, Ahead const& r) { Values::unpack(r_x, r.v); }

  // r_x += Sᵀ (-k~)ᵀ and, with kQueries, r_o = Sᵀ q~ᵀ: the values recalled from the state for the chunk's keys and
  // queries. `midway` is called between two steps.
  template <bool kQueries = true, class Midway>
  static __device__ __forceinline__ void recall(Tokens& r_x, Tokens& r_o, State const& r_s, Ahead const& ahead,
                                                uint32_t s_stage, int lane, Midway midway) {
    uint32_t const tile = s_stage + keys_by_lane(lane);
    Tokens partial[kPartials > 1 ? kPartials - 1 : 1];
    clear(r_o);
#pragma unroll
    for (int p = 1; p < kPartials; ++p) clear(partial[p - 1]);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) midway();
      A r_a[kM];
      B r_b[kSubs];
#pragma unroll
      for (int m = 0; m < kM; ++m) Operands::operand(r_a[m], r_s[m], step);
      Tokens& r_sum = step % kPartials == 0 ? r_x : partial[step % kPartials - (kPartials > 1)];
      if (step < kAhead) {
        multiply(r_sum, r_a, ahead.keys[step]);
      } else {
        load_keys(r_b, tile, step);
        multiply(r_sum, r_a, r_b);
      }
      if constexpr (kQueries)
        multiply_rows<Rows, Operands>(r_o, r_a, Rows::advance(tile, 2 * step) + Image::kQueries);
    }
#pragma unroll
    for (int p = 1; p < kPartials; ++p) add(r_x, partial[p - 1]);
  }
  static __device__ __forceinline__ void multiply(Tokens& r, A const (&r_a)[kM], B const (&r_b)[kSubs]) {
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub)
#pragma unroll
      for (int m = 0; m < kM; ++m) Operands::multiply(r[m][2 * sub], r[m][2 * sub + 1], r_a[m], r_b[sub]);
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
    for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
      for (int m = 0; m < kM; ++m) Operands::operand(r_a[step][m], r[m], step);
  }

  // Sᵀ = Sᵀ e^G_last + xᵀ updates. With split operands the sum is separate, and rounded to nearest when it is added to
  // the state: tensor cores truncate, which would accumulate over chunks.
  static __device__ __forceinline__ void update(State& r_s, Operand const& r_a, unsigned char const* smem,
                                                uint32_t s_stage, int lane) {
    uint32_t const tile = s_stage + Image::kUpdates + Folds::updates_by_lane(lane);
#pragma unroll
    for (int step = 0; step < K / 16; ++step) {
      float4 const decay = *reinterpret_cast<float4 const*>(smem + Image::kDecay + step * 64 + lane % 4 * 16);
      float const r_decay[4] = {decay.x, decay.y, decay.z, decay.w};
      float r_sum[kM][2][4];
#pragma unroll
      for (int i = 0; i < kM * 8; ++i) {
        float const kept = r_s[i / 8][2 * step + i / 4 % 2][i % 4] * r_decay[i / 4 % 2 * 2 + i % 2];
        r_sum[i / 8][i / 4 % 2][i % 4] = Operands::kSplit ? 0 : kept;
      }
#pragma unroll
      for (int tokens = 0; tokens < kTokenSteps; ++tokens) {
        B r_b;
        Folds::load_updates(r_b, tile, step, tokens);
#pragma unroll
        for (int m = 0; m < kM; ++m) Operands::multiply(r_sum[m][0], r_sum[m][1], r_a[tokens][m], r_b);
      }
#pragma unroll
      for (int i = 0; i < kM * 8; ++i) {
        float &s = r_s[i / 8][2 * step + i / 4 % 2][i % 4], sum = r_sum[i / 8][i / 4 % 2][i % 4];
        s = Operands::kSplit ? s * r_decay[i / 4 % 2 * 2 + i % 2] + sum : sum;
      }
    }
  }

  // r_o += xᵀ (P T')ᵀ: the contributions of the chunk's tokens to each other.
  static __device__ __forceinline__ void within(Tokens& r_o, Operand const& r_a, unsigned char const* smem, int lane) {
#pragma unroll
    for (int i = 0; i < kSubs; ++i)
#pragma unroll
      for (int step = 0; step < (i + 1) * kSubSteps; ++step) {
        int const block = Image::block(i, step / kSubSteps) * kSubSteps + step % kSubSteps;
        uint4 const b = *reinterpret_cast<uint4 const*>(smem + Image::kOutput + 512 * block + 16 * lane);
#pragma unroll
        for (int m = 0; m < kM; ++m)
          Operands::multiply(r_o[m][2 * i], r_o[m][2 * i + 1], r_a[step][m], {b.x, b.y, b.z, b.w});
      }
  }

  // Stores o [values, tokens] to rows of global memory; `g_o` is the chunk's first token, of which `tokens` exist.
  static __device__ __forceinline__ void store(T* g_o, int64_t stride, Tokens const& r_o, int tokens, int lane) {
#pragma unroll
    for (int n = 0; n < C / 8; ++n)
#pragma unroll
      for (int m = 0; m < kM; ++m) Values::store(g_o, stride, r_o[m][n], n, m, tokens, lane);
  }

  // Offset of a lane's element of the stored state from the warp's first column. Channels are k_step apart.
  static __device__ __forceinline__ int state_offset(int m, int n, int e, int lane, int k_step, int v_step) {
    int const channel = n * 8 + Operands::column(lane, e), value = m * 16 + Operands::value(lane, e);
    return channel * k_step + value * v_step;
  }
  static __device__ __forceinline__ void load_state(State& r_s, float const* g_state, int k_step, int lane,
                                                    int v_step = 1) {
#pragma unroll
    for (int i = 0; i < kM * K / 2; ++i) {
      int const m = i / (K / 2), n = i / 4 % (K / 8), e = i % 4;
      r_s[m][n][e] = g_state ? g_state[state_offset(m, n, e, lane, k_step, v_step)] : 0;
    }
  }
  static __device__ __forceinline__ void store_state(float* g_state, State const& r_s, int k_step, int lane,
                                                     int v_step = 1) {
#pragma unroll
    for (int i = 0; i < kM * K / 2; ++i) {
      int const m = i / (K / 2), n = i / 4 % (K / 8), e = i % 4;
      if (g_state) g_state[state_offset(m, n, e, lane, k_step, v_step)] = r_s[m][n][e];
    }
  }
};
