// What can be computed of a chunk without the state: decayed keys and queries, and the inverse of their triangle.
#pragma once
#include "kda/chunk.cuh"
#include "kda/image.cuh"
#include "kda/token.cuh"
#include "thread.cuh"

// A thread owns two channels of C / kGroups tokens; kGroups threads share the channels. Exponents are in base 2 and
// count from the start of each 16 tokens ("sub-chunk"), so that a safe gate keeps them below 116.
template <class T, class Gate, class Beta, int K, int C, int kGroups, bool kSafeGate, bool kNormalize,
          BetaGate kBetaGate, Gating kGating, class Operands = Bf16Operands>
struct Prep {
  using Chunk = ::Chunk<T, Gate, Beta>;
  using Image = ::Image<K, C, Operands>;
  using Folds = typename Operands::template Folds<K, C>;
  using Rows = typename Image::Rows;
  using Square = typename Folds::Square; // a [C, C] tile
  static constexpr int kElement = Operands::kBytes;
  static constexpr int kPairs = K / 2;
  static constexpr int kThreads = kPairs * kGroups;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTokens = C / kGroups;  // of a thread
  static constexpr int kSubs = C / 16;
  static constexpr float kDown = Operands::kCentreFactor;
  static constexpr int kTriangleStride = C + 2 * kElement;  // floats: a warp stores columns in different banks
  static constexpr float kLargestExponent = 100;  // beyond, what is decayed most comes near bf16's subnormals
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "a block is whole warps");
  static_assert(16 % kTokens == 0, "a thread's tokens lie in one sub-chunk");

  // Byte offsets in shared memory.
  static constexpr int kQueries = 0;                                     // q e^G
  static constexpr int kKeys = kQueries + Image::kTileBytes;             // k e^G
  static constexpr int kInverse = kKeys + Image::kTileBytes;             // k e^-G
  static constexpr int kRest = kInverse + Image::kTileBytes;             // k e^(G_last - G) to the end of the chunk
  static constexpr int kSubRest = kRest + Folds::kRestBytes;             // the same to the end of the first sub-chunk
  static constexpr int kT = kSubRest + (kSubs > 1 ? 16 * kElement * K : 0);  // T' = (I + M)^-1 diag(beta)
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

  // All of a chunk, to an image in global memory, by a block of kThreads threads.
  __device__ __forceinline__ void write_image() const {
    Registers r;
    load(r, chunk);
    prepare(r, nullptr, [] { __syncthreads(); });
    __syncthreads();
    fold_keys(smem + kInverse);
    fold_queries();
    __syncthreads();
    store_updates();
  }

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
      Image::store_decay(image, pair(), make_float2(sub.x * to_end.x, sub.y * to_end.y));
  }
  static __device__ __forceinline__ float2 exp2_both(float2 x) {
    return make_float2(exp2_approx(x.x), exp2_approx(x.y));
  }
  __device__ __forceinline__ void decay_token(Registers const& r, float2 exponent, int i, Sums const& sums,
                                              float2 from_start, float2 to_end, float2 sub) const {
    int const row = first() + i;
    float const gx = sums.before.x + exponent.x, gy = sums.before.y + exponent.y;
    float const cx = gx - Operands::kCentre, cy = gy - Operands::kCentre;
    float const ex = exp2_approx(cx), ey = exp2_approx(cy), nx = exp2_approx(-cx), ny = exp2_approx(-cy);
    float const q_scale = floats(kScales)[row], k_scale = floats(kScales)[C + row];
    float const kx = r.k[i].lo() * k_scale, ky = r.k[i].hi() * k_scale;
    float const qx = r.q[i].lo() * q_scale * ex, qy = r.q[i].hi() * q_scale * ey;
    // Within a safe gate's range the exponential that is there already serves once more.
    float const rx = kx * (kSafeGate ? nx * (sub.x / kDown) : exp2_approx(sums.sub.x - gx));
    float const ry = ky * (kSafeGate ? ny * (sub.y / kDown) : exp2_approx(sums.sub.y - gy));
    uint32_t const at = Image::offset(row, pair());
    store(kQueries + at, qx, qy);
    store(kKeys + at, kx * ex, ky * ey);
    store(kInverse + at, kx * nx, ky * ny);
    if (kSubs > 1 && row < 16) store(kSubRest + at, rx * kDown, ry * kDown);
    store(kRest + Folds::rest(row, pair()), rx * to_end.x, ry * to_end.y);
    float const fx = from_start.x * kDown, fy = from_start.y * kDown;
    Operands::put(image + Image::kKeys + at, -kx * ex * fx, -ky * ey * fy);
    Operands::put(image + Image::kQueries + at, qx * fx, qy * fy);
  }
  __device__ __forceinline__ void store(uint32_t offset, float lo, float hi) const {
    Operands::put(smem + offset, lo, hi);
  }

  // M and P, a block of 16 × 16 of one of them a warp. `diagonal`: whether the blocks on the diagonal are wanted.
  __device__ __forceinline__ void scores(bool diagonal) const {
    for (int task = warp(); task < 2 * Image::kBlocks; task += kWarps) {
      int const block = task / 2, i = block > 0, j = block > 1;
      bool const queries = task % 2;
      if (i == j && !diagonal) continue;
      uint32_t const a = s_base + (queries ? kQueries : kKeys) + rows(i) + rows_by_lane<Rows>(lane());
      uint32_t const columns = Operands::template columns_by_lane<Rows>(lane());
      uint32_t const b = s_base + (i == j ? kInverse + rows(i) : kSubRest) + columns;
      float r[1][2][4] = {};
#pragma unroll
      for (int step = 0; step < K / Operands::kStep; ++step) {
        typename Operands::A r_a[1];
        Operands::load(r_a[0], Rows::advance(a, 2 * step));
        multiply_rows<Rows, Operands>(r, r_a, Rows::advance(b, 2 * step));
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
      int const row = lane() / 4 + e % 2 * 8, low = e / 2 * 8 + Operands::column(lane(), 0);
      int const high = e / 2 * 8 + Operands::column(lane(), 1);
      float const* keep = &r[e / 2][e % 2 * 2];
      Operands::put_columns(smem + kP + (i * 16 + row) * Square::kRowBytes + kElement * (j * 16 + e / 2 * 8), lane(),
                            i > j || low <= row ? keep[0] : 0, i > j || high <= row ? keep[1] : 0);
    }
  }
  // A block of M, transposed: zeros on the diagonal and above.
  __device__ __forceinline__ void store_triangle(float const (&r)[2][4], int i, int j) const {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      int const row = lane() / 4 + e / 2 % 2 * 8, column = e / 4 * 8 + Operands::column(lane(), e % 2);
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
    if (lane() == 1) Operands::put(smem + kP + row * Square::kRowBytes + kElement * column, qk);
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
    Folds::store_inverse(smem + kT, lane(), x, floats(kBeta));
  }

  // The updates T'ᵀ (k e^(G_last - G)) to a tile: 16 channels a warp.
  __device__ __forceinline__ void fold_keys(unsigned char* tile) const {
    for (int step = warp(); step < K / 16; step += kWarps)
#pragma unroll
      for (int j = 0; j < kSubs; ++j) {
        float r[2][4] = {};
#pragma unroll
        for (int i = j; i < kSubs; ++i)
          Folds::keys(r, s_base + kT, s_base + kRest, smem + kRest, i, j, step, lane());
        Folds::store_keys(tile, r, j, step, lane());
      }
  }
  static __device__ __forceinline__ int rows(int sub) { return sub * 16 * Rows::kRowBytes; }

  // P T' by the last warp, to the image.
  __device__ __forceinline__ void fold_queries() const {
    if (warp() != kWarps - 1) return;
#pragma unroll
    for (int i = 0; i < kSubs; ++i)
#pragma unroll
      for (int j = 0; j <= i; ++j) {
        float r[2][4] = {};
#pragma unroll
        for (int m = j; m <= i; ++m) Folds::queries(r, s_base + kP, s_base + kT, i, m, j, lane());
        Folds::store_queries(image + Image::kOutput + Image::kBlockBytes * Image::block(i, j), r, lane());
      }
  }

  // The updates on their way to global memory take the place of k e^-G.
  __device__ __forceinline__ void store_updates() const {
    for (int i = thread; i < Image::kTileBytes / 16; i += kThreads)
      *reinterpret_cast<uint4*>(image + Image::kUpdates + 16 * i) =
          *reinterpret_cast<uint4 const*>(smem + kInverse + 16 * i);
  }
};
