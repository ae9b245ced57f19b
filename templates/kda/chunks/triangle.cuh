// The inverse of the triangle of a chunk's decayed keys and queries in shared memory, and the products folded with it.
#pragma once
#include "kda/chunks/image.cuh"
#include "thread.cuh"

// kThreads threads compute an image in shared memory, using additional tiles as scratch space.
template <int K, int C, int kBlockThreads, class Operands>
struct Triangle {
  using Image = ::Image<K, C, Operands>;
  using Folds = typename Operands::template Folds<K, C>;
  using Rows = typename Image::Rows;
  using Square = typename Folds::Square;  // a [C, C] tile
  static constexpr int kElement = Operands::kBytes;
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSubs = C / 16;
  // Whether keys and queries decayed from the start of their sub-chunk are those of the image.
  static constexpr bool kInImage = kSubs == 1 && Operands::kCentre == 0;
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "a block is whole warps");

  // Byte offsets in the threads' own shared memory. k e^-G needs none: it uses the space of the image's updates.
  static constexpr int kOwnTile = kInImage ? 0 : Image::kTileBytes;
  static constexpr int kQueries = 0;                                     // q e^G
  static constexpr int kKeys = kQueries + kOwnTile;                      // -k e^G
  static constexpr int kRest = kKeys + kOwnTile;                         // k e^(G_last - G) to the end of the chunk
  static constexpr int kSubRest = kRest + Folds::kRestBytes;             // k, decayed to the end of the first sub-chunk
  static constexpr int kT = kSubRest + (kSubs > 1 ? 16 * kElement * K : 0);  // T' = (I + M)^-1 diag(beta)
  static constexpr int kP = kT + C * Square::kRowBytes;                  // tril(q e^G (k e^-G)ᵀ)
  static constexpr int kTriangle = kP + C * Square::kRowBytes;           // M, fp32
  static constexpr int kBeta = kTriangle + 4 * C * C;
  static constexpr int kTriangleBytes = kBeta + 4 * C;

  unsigned char* smem;
  uint32_t thread;
  unsigned char* image;  // image in shared memory

  __device__ __forceinline__ int warp() const { return int(thread / 32); }
  __device__ __forceinline__ int lane() const { return int(thread % 32); }
  __device__ __forceinline__ float* floats(int offset) const { return reinterpret_cast<float*>(smem + offset); }
  __device__ __forceinline__ unsigned char* queries() const {
    return kInImage ? image + Image::kQueries : smem + kQueries;
  }
  __device__ __forceinline__ unsigned char* keys() const { return kInImage ? image + Image::kKeys : smem + kKeys; }
  __device__ __forceinline__ unsigned char* inverse_keys() const { return image + Image::kUpdates; }
  static __device__ __forceinline__ int rows(int sub) { return sub * 16 * Rows::kRowBytes; }

  // Position of an element of M. Groups of four in a row are rotated so that a warp that stores to 8 rows, or reads 16
  // bytes of each, has no bank conflicts.
  static __device__ __forceinline__ int element(int row, int column) {
    int const turn = C == 16 ? row / 2 % 2 * 2 + row / 4 % 2 : row % 4 * 2 + row / 4 % 2;
    return row * C + (column ^ 4 * turn);
  }

  // M and, with kOutputs, P, one 16 × 16 block of either per warp; a single warp reads k^ once for both. `diagonal`:
  // whether to compute the blocks on the diagonal.
  template <bool kOutputs>
  __device__ __forceinline__ void scores(bool diagonal) const {
    constexpr int kEach = kOutputs ? 2 : 1, kBoth = kWarps == 1 ? kEach : 1, kTasks = kEach / kBoth * Image::kBlocks;
#pragma unroll
    for (int pass = 0; pass < ceil_div(kTasks, kWarps); ++pass) {
      int const task = warp() + pass * kWarps;
      if (task >= kTasks) break;
      int const block = task / (kEach / kBoth), i = block > 0, j = block > 1;
      bool const queries_alone = task % (kEach / kBoth);
      if (i == j && !diagonal) continue;
      float r[kBoth][2][4];
      multiply_keys(r, queries_alone, i, j);
      if (queries_alone)
        store_scores(r[0], i, j);
      else
        store_triangle(r[0], i, j);
      if constexpr (kBoth == 2) store_scores(r[1], i, j);
    }
  }
  // Rows of keys, of queries only, or of both, times k^. Two sums, of alternating steps, halve the latency of dependent
  // products.
  template <int kBoth>
  __device__ __forceinline__ void multiply_keys(float (&r)[kBoth][2][4], bool queries_alone, int i, int j) const {
    uint32_t const at = rows(i) + rows_by_lane<Rows>(lane());
    uint32_t const a[2] = {shared_address(queries_alone ? queries() : keys()) + at, shared_address(queries()) + at};
    uint32_t const s_keys = shared_address(i == j ? inverse_keys() + rows(i) : smem + kSubRest);
    uint32_t const b = s_keys + Operands::template columns_by_lane<Rows>(lane());
    float r_sums[2][kBoth][2][4] = {};
#pragma unroll
    for (int step = 0; step < K / Operands::kStep; ++step) {
      typename Operands::A r_a[kBoth];
#pragma unroll
      for (int m = 0; m < kBoth; ++m) Operands::load(r_a[m], Rows::advance(a[m], 2 * step));
      multiply_rows<Rows, Operands>(r_sums[step % 2], r_a, Rows::advance(b, 2 * step));
    }
#pragma unroll
    for (int e = 0; e < 8 * kBoth; ++e)
      r[e / 8][e / 4 % 2][e % 4] = r_sums[0][e / 8][e / 4 % 2][e % 4] + r_sums[1][e / 8][e / 4 % 2][e % 4];
  }
  // Stores a block of P: zeros above the diagonal.
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
  // Stores one score of P.
  __device__ __forceinline__ void put_score(int row, int column, float x) const {
    Operands::put(smem + kP + row * Square::kRowBytes + kElement * column, x);
  }
  // Stores a block of M: zeros on the diagonal and above.
  __device__ __forceinline__ void store_triangle(float const (&r)[2][4], int i, int j) const {
    int const at = element(lane() / 4, Operands::column(lane(), 0));
    float const beta[2] = {-floats(kBeta)[i * 16 + lane() / 4], -floats(kBeta)[i * 16 + lane() / 4 + 8]};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int const row = lane() / 4 + e % 2 * 8, low = e / 2 * 8 + Operands::column(lane(), 0);
      int const high = e / 2 * 8 + Operands::column(lane(), 1);
      float* s_row = floats(kTriangle) + (i * 16 + e % 2 * 8) * C;
      int const turned = at ^ (j * 16 + e / 2 * 8);  // these bits do not overlap those that rotate rows
      float2 const x = make_float2(i > j || low < row ? r[e / 2][e % 2 * 2] * beta[e % 2] : 0,
                                   i > j || high < row ? r[e / 2][e % 2 * 2 + 1] * beta[e % 2] : 0);
      if constexpr (kElement == 2)  // the columns are adjacent
        *reinterpret_cast<float2*>(s_row + turned) = x;
      else
        s_row[turned] = x.x, s_row[turned ^ 4] = x.y;
    }
  }

  // T' = (I + M)^-1 diag(beta): a lane solves for one row, columns from right to left, in fp32. A solved element is
  // eliminated from all others at once, so that each waits for one fma. The diagonal block is first.
  __device__ __forceinline__ void solve() const {
    if (warp() != 0 || lane() >= C) return;
    float const* s_m = floats(kTriangle);
    float x[C];  // row of I - (I + M)^-1
#pragma unroll
    for (int j = 0; j < C; j += 4) {
      float4 row = {};
      if (j < 16 || lane() >= 16)  // blocks above the diagonal are not stored
        row = *reinterpret_cast<float4 const*>(s_m + element(lane(), j));
      x[j] = row.x, x[j + 1] = row.y, x[j + 2] = row.z, x[j + 3] = row.w;
    }
#pragma unroll
    for (int m = C - 2; m > 0; --m)
#pragma unroll
      for (int j = (m - 1) / 4 * 4; j >= 0; j -= 4) {
        float4 const row = *reinterpret_cast<float4 const*>(s_m + element(m, j));
        if (j + 3 < m) x[j + 3] -= x[m] * row.w;
        if (j + 2 < m) x[j + 2] -= x[m] * row.z;
        if (j + 1 < m) x[j + 1] -= x[m] * row.y;
        x[j] -= x[m] * row.x;
      }
    Folds::store_inverse(smem + kT, lane(), x, floats(kBeta));
  }

  // The updates T'ᵀ (k e^(G_last - G)), stored in the image: 16 channels per warp.
  __device__ __forceinline__ void fold_keys() const {
    uint32_t const s_base = shared_address(smem);
#pragma unroll
    for (int pass = 0; pass < ceil_div(K / 16, kWarps); ++pass) {
      int const step = warp() + pass * kWarps;
      if (step >= K / 16) break;
#pragma unroll
      for (int j = 0; j < kSubs; ++j) {
        float r[2][4] = {};
#pragma unroll
        for (int i = j; i < kSubs; ++i) Folds::keys(r, s_base + kT, s_base + kRest, smem + kRest, i, j, step, lane());
        Folds::store_keys(image + Image::kUpdates, r, j, step, lane());
      }
    }
  }

  // The updates computed by a single warp, which would wait for each product: all products precede its first store,
  // since loads are not reordered with stores.
  __device__ __forceinline__ void fold_keys_together() const {
    constexpr int kPasses = ceil_div(K / 16, kWarps);
    uint32_t const s_base = shared_address(smem);
#pragma unroll
    for (int j = 0; j < kSubs; ++j) {
      float r[kPasses][2][4] = {};
#pragma unroll
      for (int i = j; i < kSubs; ++i) {
        typename Operands::A r_inverse;
        Folds::load_inverse(r_inverse, s_base + kT, i, j, lane());
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          int const step = warp() + pass * kWarps;
          if (step < K / 16) Folds::add_keys(r[pass], r_inverse, s_base + kRest, i, step, lane());
        }
      }
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        int const step = warp() + pass * kWarps;
        if (step < K / 16) Folds::store_keys(image + Image::kUpdates, r[pass], j, step, lane());
      }
    }
  }

  // P T' by the last warp, stored in the image.
  __device__ __forceinline__ void fold_queries() const {
    if (warp() != kWarps - 1) return;
    uint32_t const s_base = shared_address(smem);
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
};
