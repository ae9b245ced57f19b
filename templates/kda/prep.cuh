// What can be computed of a chunk without the state: decayed keys and queries, and the inverse of their triangle.
#pragma once
#include "kda/chunk.cuh"
#include "kda/image.cuh"
#include "kda/products.cuh"
#include "kda/token.cuh"
#include "thread.cuh"

// A thread owns two channels of C / kGroups tokens; kGroups threads share the channels. Exponents are in base 2 and
// count from the start of each 16 tokens ("sub-chunk"), so that a safe gate keeps them below 116.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kSafeGate, bool kNormalize,
          BetaGate kBetaGate, Gating kGating>
struct Prep {
  using Chunk = ::Chunk<T, Gate, Beta>;
  using Image = ::Image<K, C>;
  using Rows = typename Image::Rows;
  using Square = ::Rows<C, false>;  // a [C, C] tile of bf16
  static constexpr int kPairs = K / 2;
  static constexpr int kThreads = kPairs * kGroups;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTokens = C / kGroups;  // of a thread
  static constexpr int kSubs = C / 16;
  static constexpr int kTriangleStride = C + 4;  // floats: rows begin in different banks
  static constexpr float kLargestExponent = 100;  // beyond, what is decayed most comes near bf16's subnormals
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "a block is whole warps");
  static_assert(16 % kTokens == 0, "a thread's tokens lie in one sub-chunk");

  // Byte offsets in shared memory.
  static constexpr int kQueries = 0;                                     // q e^G
  static constexpr int kKeys = kQueries + Image::kTileBytes;             // k e^G
  static constexpr int kInverse = kKeys + Image::kTileBytes;             // k e^-G
  static constexpr int kRest = kInverse + Image::kTileBytes;             // k e^(G_last - G) to the end of the chunk
  static constexpr int kSubRest = kRest + Image::kTileBytes;             // the same to the end of the first sub-chunk
  static constexpr int kT = kSubRest + (kSubs > 1 ? 32 * K : 0);         // T' = (I + M)^-1 diag(beta)
  static constexpr int kP = kT + C * Square::kRowBytes;                  // tril(q e^G (k e^-G)ᵀ)
  static constexpr int kTriangle = kP + C * Square::kRowBytes;           // M transposed, fp32
  static constexpr int kTotals = kTriangle + 4 * C * kTriangleStride;    // sums of g, a group of threads each
  static constexpr int kBeta = kTotals + 4 * kGroups * K;
  static constexpr int kScales = kBeta + 4 * C;                          // of the rows of q, then of k
  static constexpr int kFlags = kScales + 8 * C;                         // a warp: some exponent is too large
  static constexpr int kBytes = kFlags + 4 * ((kWarps + 3) / 4 * 4);

  unsigned char* smem;
  uint32_t s_base;  // the same, as an address of shared memory
  int thread;
  float scale;
  HeadGate<kGating> gate;
  Chunk chunk;
  unsigned char* image;  // in global memory, or where scan will read it

  __device__ __forceinline__ float* floats(int offset) const { return reinterpret_cast<float*>(smem + offset); }
  __device__ __forceinline__ int warp() const { return thread / 32; }
  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int pair() const { return thread % kPairs; }
  __device__ __forceinline__ int group() const { return thread / kPairs; }
  __device__ __forceinline__ int first() const { return group() * kTokens; }  // token

  // A thread's share of a chunk, as it lies in memory.
  struct Registers {
    Pair<T> q[kTokens], k[kTokens];
    Pair<Gate> g[kTokens];
    Beta beta;
  };
  using Gates = float2[kTokens];  // exponents, summed from the thread's first token on
  // Sums of g over other tokens of the same channels.
  struct Sums {
    float2 before, sub, earlier, later;  // in the sub-chunk before the thread; of it; of the sub-chunks around it
  };

  // All but the updates and what is folded into P. `r` holds the chunk, and afterwards `next`. `sync` is a barrier of
  // the kThreads threads; one is due before the folds.
  template <class Sync>
  __device__ __forceinline__ void prepare(Registers& r, Chunk const* next, Sync sync) const {
    Gates gates;
    sum_gates(gates, r);
    row_scales();
    if (thread < C) floats(kBeta)[thread] = thread < chunk.tokens ? beta_of<kBetaGate>(to_float(r.beta)) : 0;
    sync();
    Sums const all = sums();
    if constexpr (!kSafeGate) flag_large_exponents(all);
    decay(r, gates, all);
    if (next) load(r, *next);
    sync();
    bool const large = !kSafeGate && exponents_are_large();
    scores(!large);
    if (large) diagonal_by_pairs();
    sync();
    solve();
  }

  __device__ __forceinline__ void load(Registers& r, Chunk const& from) const {
    // Pointers that advance: products with the strides, kept for every chunk, would fill the registers.
    T const *q = from.q + first() * from.q_stride + 2 * pair(), *k = from.k + first() * from.k_stride + 2 * pair();
    Gate const* g = from.g + first() * from.g_stride + 2 * pair();
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      bool const there = first() + i < from.tokens;
      r.q[i] = load_pair(q, there);
      r.k[i] = load_pair(k, there);
      r.g[i] = load_pair(g, there);
      q += from.q_stride;
      k += from.k_stride;
      g += from.g_stride;
    }
    if (thread < C && thread < from.tokens) r.beta = from.beta[thread * from.beta_stride];
  }

  __device__ __forceinline__ void sum_gates(Gates& gates, Registers const& r) const {
    float const low_bias = gate.bias_of(2 * pair()), high_bias = gate.bias_of(2 * pair() + 1);
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      bool const there = kGating == Gating::kNone || first() + i < chunk.tokens;
      if (there) add(sum, make_float2(gate(r.g[i].lo(), low_bias), gate(r.g[i].hi(), high_bias)));
      gates[i] = sum;
    }
    reinterpret_cast<float2*>(smem + kTotals)[group() * kPairs + pair()] = sum;
  }

  // The factors of the rows of q and k: scale, and the inverse lengths.
  __device__ __forceinline__ void row_scales() const {
    float* s_scales = floats(kScales);
    for (int row = warp(); row < 2 * C; row += kWarps) {
      T const* x = row < C ? chunk.q + row * chunk.q_stride : chunk.k + (row - C) * chunk.k_stride;
      float sum = 0;
      if (kNormalize && row % C < chunk.tokens)
        for (int d = lane(); d < K; d += 32) sum += to_float(x[d]) * to_float(x[d]);
      float const length = kNormalize ? rsqrtf(warp_sum(sum) + kL2Epsilon) : 1;
      if (lane() == 0) s_scales[row] = row < C ? length * scale : length;
    }
  }

  __device__ __forceinline__ Sums sums() const {
    Sums r{};
#pragma unroll
    for (int other = 0; other < kGroups; ++other) {
      float2 const sum = reinterpret_cast<float2 const*>(smem + kTotals)[other * kPairs + pair()];
      int const sub = other * kTokens / 16, mine = kSubs > 1 ? first() / 16 : 0;
      if (sub == mine) add(r.sub, sum);
      if (sub == mine && other < group()) add(r.before, sum);
      if (sub < mine) add(r.earlier, sum);
      if (sub > mine) add(r.later, sum);
    }
    return r;
  }
  static __device__ __forceinline__ void add(float2& a, float2 b) { a.x += b.x, a.y += b.y; }

  __device__ __forceinline__ void flag_large_exponents(Sums const& sums) const {
    bool const large = fminf(sums.sub.x, sums.sub.y) < -kLargestExponent;
    bool const any = __any_sync(0xffffffff, large);
    if (lane() == 0) reinterpret_cast<int*>(smem + kFlags)[warp()] = any;
  }
  __device__ __forceinline__ bool exponents_are_large() const {
    int any = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) any |= reinterpret_cast<int const*>(smem + kFlags)[i];
    return any != 0;
  }

  // All the ways in which the tokens are decayed, to shared memory and to the image.
  __device__ __forceinline__ void decay(Registers const& r, Gates const& gates, Sums const& sums) const {
    float2 const one = make_float2(1, 1), sub = exp2_both(sums.sub);
    float2 const from_start = kSubs > 1 ? exp2_both(sums.earlier) : one;
    float2 const to_end = kSubs > 1 ? exp2_both(sums.later) : one;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) decay_token(r, gates[i], i, sums, from_start, to_end, sub);
    if (group() == 0)
      *reinterpret_cast<float2*>(image + Image::decay(pair())) = make_float2(sub.x * to_end.x, sub.y * to_end.y);
  }
  static __device__ __forceinline__ float2 exp2_both(float2 x) {
    return make_float2(exp2_approx(x.x), exp2_approx(x.y));
  }
  __device__ __forceinline__ void decay_token(Registers const& r, float2 exponent, int i, Sums const& sums,
                                              float2 from_start, float2 to_end, float2 sub) const {
    int const row = first() + i;
    float const gx = sums.before.x + exponent.x, gy = sums.before.y + exponent.y;
    float const ex = exp2_approx(gx), ey = exp2_approx(gy), nx = exp2_approx(-gx), ny = exp2_approx(-gy);
    float const q_scale = floats(kScales)[row], k_scale = floats(kScales)[C + row];
    float const kx = r.k[i].lo() * k_scale, ky = r.k[i].hi() * k_scale;
    float const qx = r.q[i].lo() * q_scale * ex, qy = r.q[i].hi() * q_scale * ey;
    // Within a safe gate's range the exponential that is there already serves once more.
    float const rx = kx * (kSafeGate ? nx * sub.x : exp2_approx(sums.sub.x - gx));
    float const ry = ky * (kSafeGate ? ny * sub.y : exp2_approx(sums.sub.y - gy));
    uint32_t const at = Rows::offset(row, pair() / 4) + pair() % 4 * 4;
    store(kQueries + at, qx, qy);
    store(kKeys + at, kx * ex, ky * ey);
    store(kInverse + at, kx * nx, ky * ny);
    if (kSubs > 1 && row < 16) store(kSubRest + at, rx, ry);
    store(kRest + at, rx * to_end.x, ry * to_end.y);
    *reinterpret_cast<uint32_t*>(image + Image::kKeys + at) =
        pack<bf16>(-kx * ex * from_start.x, -ky * ey * from_start.y);
    *reinterpret_cast<uint32_t*>(image + Image::kQueries + at) = pack<bf16>(qx * from_start.x, qy * from_start.y);
  }
  __device__ __forceinline__ void store(uint32_t offset, float lo, float hi) const {
    *reinterpret_cast<uint32_t*>(smem + offset) = pack<bf16>(lo, hi);
  }

  // M and P, a block of 16 × 16 of one of them a warp. `diagonal`: whether the blocks on the diagonal are wanted.
  __device__ __forceinline__ void scores(bool diagonal) const {
    for (int task = warp(); task < 2 * Image::kBlocks; task += kWarps) {
      int const block = task / 2, i = block > 0, j = block > 1;
      bool const queries = task % 2;
      if (i == j && !diagonal) continue;
      uint32_t const a = s_base + (queries ? kQueries : kKeys) + rows(i) + rows_by_lane<Rows>(lane());
      uint32_t const b = s_base + (i == j ? kInverse + rows(i) : kSubRest) + chunks_by_lane<Rows>(lane());
      float r[1][2][4] = {};
#pragma unroll
      for (int step = 0; step < K / 16; ++step) {
        uint32_t r_a[1][4];
        ldmatrix<4>(r_a[0], Rows::advance(a, 2 * step));
        multiply_rows<Rows>(r, r_a, Rows::advance(b, 2 * step));
      }
      if (queries)
        store_scores(r[0], i, j);
      else
        store_triangle(r[0], i, j);
    }
  }
  // A block of P: zeros above the diagonal.
  __device__ __forceinline__ void store_scores(float const (&r)[2][4], int i, int j) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int const row = lane() / 4 + e % 2 * 8, column = e / 2 * 8 + lane() % 4 * 2;
      float const* keep = &r[e / 2][e % 2 * 2];
      store(kP + (i * 16 + row) * Square::kRowBytes + 2 * (j * 16 + column), i > j || column <= row ? keep[0] : 0,
            i > j || column < row ? keep[1] : 0);
    }
  }
  // A block of M, transposed: zeros on the diagonal and above.
  __device__ __forceinline__ void store_triangle(float const (&r)[2][4], int i, int j) const {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      int const row = lane() / 4 + e / 2 % 2 * 8, column = e / 4 * 8 + lane() % 4 * 2 + e % 2;
      floats(kTriangle)[(j * 16 + column) * kTriangleStride + i * 16 + row] =
          i > j || column < row ? r[e / 4][e % 4] * floats(kBeta)[i * 16 + row] : 0;
    }
  }

  // The diagonal blocks where exponents are large: each pair of tokens by the gates between them, a row a warp.
  __device__ __forceinline__ void diagonal_by_pairs() const {
    for (int row = warp(); row < C; row += kWarps) {
      int const start = row / 16 * 16;
      float between[(K + 31) / 32] = {};
      for (int column = start + 15; column > row; --column) place(row, column, 0, 0);
      for (int column = row; column >= start; --column) {
        float kk = 0, qk = 0;
#pragma unroll
        for (int e = 0; e < (K + 31) / 32; ++e) {
          int const d = lane() + 32 * e;
          bool const there = d < K && row < chunk.tokens;
          float const key = there ? to_float(chunk.k[column * chunk.k_stride + d]) * exp2_approx(between[e]) : 0;
          kk += key * (there ? to_float(chunk.k[row * chunk.k_stride + d]) : 0);
          qk += key * (there ? to_float(chunk.q[row * chunk.q_stride + d]) : 0);
          between[e] += there ? gate(to_float(chunk.g[column * chunk.g_stride + d]), gate.bias_of(d)) : 0;
        }
        float const k_scale = floats(kScales)[C + column];
        kk = warp_sum(kk) * k_scale * floats(kScales)[C + row];
        qk = warp_sum(qk) * k_scale * floats(kScales)[row];
        place(row, column, kk, qk);
      }
    }
  }
  __device__ __forceinline__ void place(int row, int column, float kk, float qk) const {
    if (lane() == 0)
      floats(kTriangle)[column * kTriangleStride + row] = column < row ? kk * floats(kBeta)[row] : 0;
    if (lane() == 1) *reinterpret_cast<bf16*>(smem + kP + row * Square::kRowBytes + 2 * column) = from_float<bf16>(qk);
  }

  // T' = (I + M)^-1 diag(beta): a lane solves for one row, columns from right to left, in fp32.
  __device__ __forceinline__ void solve() const {
    if (warp() != 0 || lane() >= C) return;
    float x[C];
#pragma unroll
    for (int j = C - 1; j >= 0; --j) {
      float sum[4] = {lane() == j ? 1.f : 0.f, 0, 0, 0};
#pragma unroll
      for (int m = (j + 1) / 4 * 4; m < C; m += 4) {
        float4 const column = *reinterpret_cast<float4 const*>(floats(kTriangle) + j * kTriangleStride + m);
        if (m > j) sum[0] -= x[m] * column.x;
        if (m + 1 > j) sum[1] -= x[m + 1] * column.y;
        if (m + 2 > j) sum[2] -= x[m + 2] * column.z;
        sum[3] -= x[m + 3] * column.w;
      }
      x[j] = j > lane() ? 0 : (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
#pragma unroll
    for (int j = 0; j < C; j += 2)
      store(kT + lane() * Square::kRowBytes + 2 * j, x[j] * floats(kBeta)[j], x[j + 1] * floats(kBeta)[j + 1]);
  }

  // The updates T'ᵀ (k e^(G_last - G)) to a tile: 16 channels a warp.
  __device__ __forceinline__ void fold_keys(unsigned char* tile) const {
    for (int step = warp(); step < K / 16; step += kWarps)
#pragma unroll
      for (int j = 0; j < kSubs; ++j) {
        float r[2][4] = {};
#pragma unroll
        for (int i = j; i < kSubs; ++i) {
          uint32_t r_a[4], r_b[4];
          ldmatrix_trans<4>(r_a, block(kT, i, j) + chunks_by_lane<Square>(lane()));
          ldmatrix_trans<4>(r_b, Rows::advance(s_base + kRest + rows_by_lane<Rows>(lane()), 2 * step) + rows(i));
          mma_m16n8k16<bf16>(r[0], r_a, {r_b[0], r_b[1]});
          mma_m16n8k16<bf16>(r[1], r_a, {r_b[2], r_b[3]});
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          uint32_t const at = Rows::offset(j * 16 + lane() / 4 + e % 2 * 8, step * 2 + e / 2) + lane() % 4 * 4;
          *reinterpret_cast<uint32_t*>(tile + at) = pack<bf16>(r[e / 2][e % 2 * 2], r[e / 2][e % 2 * 2 + 1]);
        }
      }
  }
  static __device__ __forceinline__ int rows(int sub) { return sub * 16 * Rows::kRowBytes; }
  __device__ __forceinline__ uint32_t block(int tile, int i, int j) const {
    return s_base + tile + i * 16 * Square::kRowBytes + 32 * j;
  }

  // P T' by the last warp, to the image.
  __device__ __forceinline__ void fold_queries() const {
    if (warp() != kWarps - 1) return;
#pragma unroll
    for (int i = 0; i < kSubs; ++i)
#pragma unroll
      for (int j = 0; j <= i; ++j) {
        float r[2][4] = {};
#pragma unroll
        for (int m = j; m <= i; ++m) {
          uint32_t r_a[4], r_b[4];
          ldmatrix<4>(r_a, block(kP, i, m) + rows_by_lane<Square>(lane()));
          ldmatrix_trans<4>(r_b, block(kT, m, j) + rows_by_lane<Square>(lane()));
          mma_m16n8k16<bf16>(r[0], r_a, {r_b[0], r_b[1]});
          mma_m16n8k16<bf16>(r[1], r_a, {r_b[2], r_b[3]});
        }
        *reinterpret_cast<uint4*>(image + Image::kOutput + 512 * Image::block(i, j) + 16 * lane()) =
            make_uint4(pack<bf16>(r[0][0], r[0][1]), pack<bf16>(r[1][0], r[1][1]), pack<bf16>(r[0][2], r[0][3]),
                       pack<bf16>(r[1][2], r[1][3]));
      }
  }

  // The updates on their way to global memory take the place of k e^-G.
  __device__ __forceinline__ void store_updates() const {
    for (int i = thread; i < Image::kTileBytes / 16; i += kThreads)
      *reinterpret_cast<uint4*>(image + Image::kUpdates + 16 * i) =
          *reinterpret_cast<uint4 const*>(smem + kInverse + 16 * i);
  }
};
