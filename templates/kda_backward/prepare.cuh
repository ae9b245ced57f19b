// What can be computed of a chunk without the state, by one warp: decayed keys and queries, and the inverses of their
// triangle.
#pragma once
#include "image.cuh"
#include "math.cuh"
#include "shared.cuh"
#include "slopes.cuh"
#include "tile.cuh"

constexpr float kLargestExponent = 100;  // of 2: beyond, what is decayed most comes near bf16's subnormals

// The rows of a chunk in global memory, of which the first `tokens` exist.
template <class T, class Gate, class Beta>
struct ChunkRows {
  T const *q, *k;
  Gate const* g;
  Beta const* beta;
  int64_t q_stride, k_stride, g_stride, beta_stride;
  int tokens;
};

// Exponents are in base 2 and count from the start of the chunk, so that a safe gate keeps them below 116.
template <class T, class Gate, class Beta, int K, BetaGate kBetaGate, Gating kGating, bool kSafeGate,
          bool kNormalize>
struct Prepare {
  using Image = ::Image<K>;
  using Rows = typename Image::Rows;
  using Square = ::Rows<kChunk, false>;  // a [16, 16] tile of bf16
  using Scores = float[2][4];            // [16, 16], two tiles side by side
  static constexpr int kSteps = K / 16;
  static constexpr int kStride = kChunk + 4;       // floats: rows of keys begin in different banks
  static constexpr int kQueryStride = kChunk + 8;  // floats: pairs of four rows lie in different banks

  // Byte offsets in the warp's shared memory.
  static constexpr int kRest = 0;                                        // k e^(G_last - G), a tile
  static constexpr int kKeys = Image::kTileBytes;                        // k kᵀ with decay, transposed, fp32
  static constexpr int kQueries = kKeys + 4 * kChunk * kStride;          // q kᵀ with decay, fp32
  static constexpr int kInverse = kQueries + 4 * kChunk * kQueryStride;  // T = (I + diag(beta) L)^-1
  static constexpr int kErrors = kInverse + kChunk * Square::kRowBytes;  // (I + L diag(beta))^-1
  static constexpr int kBeta = kErrors + kChunk * Square::kRowBytes;
  static constexpr int kBytes = (kBeta + 4 * kChunk + 127) / 128 * 128;

  unsigned char* smem;
  int lane;
  float scale;
  HeadGate<kGating> gate;
  ChunkRows<T, Gate, Beta> rows;
  unsigned char* image;

  __device__ __forceinline__ float* floats(int offset) const { return reinterpret_cast<float*>(smem + offset); }

  __device__ __forceinline__ void run() const {
    Lengths const lengths = row_lengths();
    Scores r_kk = {}, r_qk = {};
    float lowest = 0;
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) lowest = fminf(lowest, decay(r_kk, r_qk, lengths, step));
    store_scores(r_kk, r_qk);
    if (!kSafeGate && __any_sync(0xffffffff, lowest < -kLargestExponent)) scores_by_pairs(lengths);
    store_beta();
    __syncwarp();
    solve();
    __syncwarp();
    store_updates();
    store_blocks();
  }

  // Zeros fill the image up to the next tile: the scans copy them too.
  __device__ __forceinline__ void store_beta() const {
    bool const there = lane < kChunk && lane < rows.tokens;
    float const beta = there ? beta_of<kBetaGate>(to_float(rows.beta[lane * rows.beta_stride])) : 0;
    if (lane < kChunk) floats(kBeta)[lane] = beta;
    if (lane < (Image::kForwardBytes - Image::kBeta) / 4) reinterpret_cast<float*>(image + Image::kBeta)[lane] = beta;
  }

  // The factors of the lane's rows of q, scale among them, and of k.
  struct Lengths {
    float q[2], k[2];
  };
  __device__ __forceinline__ Lengths row_lengths() const {
    Lengths r{{scale, scale}, {1, 1}};
    if constexpr (kNormalize) {
      float q_sums[2] = {}, k_sums[2] = {};
      for (int channel = 0; channel < K; channel += 8) {
        add_squares(q_sums, rows.q + channel, rows.q_stride);
        add_squares(k_sums, rows.k + channel, rows.k_stride);
      }
      float* g_lengths = reinterpret_cast<float*>(image + Image::kLengths);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float const q = rsqrtf(quad_sum(q_sums[half]) + kL2Epsilon), k = rsqrtf(quad_sum(k_sums[half]) + kL2Epsilon);
        r.q[half] = q * scale, r.k[half] = k;
        if (lane % 4 == 0) g_lengths[lane / 4 + 8 * half] = q, g_lengths[kChunk + lane / 4 + 8 * half] = k;
      }
    }
    return r;
  }
  __device__ __forceinline__ void add_squares(float (&r)[2], T const* x, int64_t stride) const {
    Tile tile;
    load_tile(tile, x, stride, rows.tokens, lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) r[e / 2] += tile[e] * tile[e];
  }

  // Sixteen channels: what the image and the scores take of them. Returns their lowest exponent.
  __device__ __forceinline__ float decay(Scores& r_kk, Scores& r_qk, Lengths const& lengths, int step) const {
    Tile q[2], k[2], up[2], rest[2];
    float lowest = 0;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      int const channel = 16 * step + 8 * t;
      Tile exponents;
      load_tile(q[t], rows.q + channel, rows.q_stride, rows.tokens, lane);
      load_tile(k[t], rows.k + channel, rows.k_stride, rows.tokens, lane);
      load_tile(exponents, rows.g + channel, rows.g_stride, rows.tokens, lane);
      decay_exponents(exponents, gate, channel, rows.tokens, lane);
      sum_up(exponents, lane);
      float2 const last = last_token(exponents, lane);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float const exponent = exponents[e], total = e % 2 ? last.y : last.x, in = exp2_approx(exponent);
        k[t][e] *= lengths.k[e / 2];
        up[t][e] = k[t][e] * exp2_approx(-exponent);
        rest[t][e] = k[t][e] * exp2_approx(total - exponent);
        q[t][e] *= in * lengths.q[e / 2];
        k[t][e] *= in;
        lowest = fminf(lowest, total);
      }
      if (lane < 4)
        *reinterpret_cast<float2*>(image + Image::decay(channel / 2 + lane)) =
            make_float2(exp2_approx(last.x), exp2_approx(last.y));
    }
    uint32_t r_q[4], r_k[4], r_up[4], r_rest[4];
    pack_rows(r_q, q[0], q[1]);
    pack_rows(r_k, k[0], k[1]);
    pack_rows(r_up, up[0], up[1]);
    pack_rows(r_rest, rest[0], rest[1]);
    add_scores(r_kk, r_k, r_up);
    add_scores(r_qk, r_q, r_up);
#pragma unroll
    for (int e = 0; e < 4; ++e) r_k[e] ^= 0x80008000u;  // the image has -k
    store_rows(image + Image::kQueries, r_q, step);
    store_rows(image + Image::kKeys, r_k, step);
    store_rows(smem + kRest, r_rest, step);
    return lowest;
  }

  // r += A Bᵀ of sixteen channels: what is operand A row by row is, regrouped, operand B of the product with it.
  static __device__ __forceinline__ void add_scores(Scores& r, uint32_t const (&r_a)[4], uint32_t const (&r_b)[4]) {
    mma_m16n8k16<bf16>(r[0], r_a, {r_b[0], r_b[2]});
    mma_m16n8k16<bf16>(r[1], r_a, {r_b[1], r_b[3]});
  }

  // Operand A to a tile.
  __device__ __forceinline__ void store_rows(unsigned char* tile, uint32_t const (&r)[4], int step) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      uint32_t const at = Rows::offset(lane / 4 + e % 2 * 8, step * 2 + e / 2) + lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(tile + at) = r[e];
    }
  }

  // Zeros above the diagonal, and for the keys on it.
  __device__ __forceinline__ void store_scores(Scores const& r_kk, Scores const& r_qk) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = lane / 4 + i % 2 * 8, column = i / 2 * 8 + lane % 4 * 2;
      float const *kk = &r_kk[i / 2][i % 2 * 2], *qk = &r_qk[i / 2][i % 2 * 2];
      floats(kKeys)[column * kStride + row] = column < row ? kk[0] : 0;
      floats(kKeys)[(column + 1) * kStride + row] = column + 1 < row ? kk[1] : 0;
      *reinterpret_cast<float2*>(floats(kQueries) + row * kQueryStride + column) =
          make_float2(column <= row ? qk[0] : 0, column < row ? qk[1] : 0);
    }
  }

  // The scores where exponents are large: each pair of tokens by the gates between them.
  __device__ __forceinline__ void scores_by_pairs(Lengths const& lengths) const {
    __syncwarp();
    for (int row = 0; row < kChunk; ++row) {
      bool const there = row < rows.tokens;
      float between[(K + 31) / 32] = {};
      for (int column = row; column >= 0; --column) {
        float kk = 0, qk = 0;
#pragma unroll
        for (int e = 0; e < (K + 31) / 32; ++e) {
          int const d = lane + 32 * e;
          if (d >= K || !there) continue;
          float const key = to_float(rows.k[column * rows.k_stride + d]) * exp2_approx(between[e]);
          kk += key * to_float(rows.k[row * rows.k_stride + d]);
          qk += key * to_float(rows.q[row * rows.q_stride + d]);
          between[e] += gate(to_float(rows.g[column * rows.g_stride + d]), gate.bias_of(d));
        }
        float const key = of_token(lengths.k, column);
        kk = warp_sum(kk) * key * of_token(lengths.k, row), qk = warp_sum(qk) * key * of_token(lengths.q, row);
        if (lane == 0) floats(kKeys)[column * kStride + row] = column < row ? kk : 0;
        if (lane == 1) floats(kQueries)[row * kQueryStride + column] = qk;
      }
    }
  }

  static __device__ __forceinline__ float of_token(float const (&r)[2], int token) {
    return __shfl_sync(0xffffffff, token < 8 ? r[0] : r[1], token % 8 * 4);
  }

  // Both inverses: a lane solves for one row, columns from right to left, in fp32. beta comes before or after the sum.
  __device__ __forceinline__ void solve() const {
    int const row = lane % kChunk;
    bool const errors = lane >= kChunk;
    float x[kChunk], y[kChunk];  // the row, and the row times beta where that comes first
#pragma unroll
    for (int j = kChunk - 1; j >= 0; --j) {
      float const beta = floats(kBeta)[j];
      float sum[4] = {};
#pragma unroll
      for (int m = (j + 1) / 4 * 4; m < kChunk; m += 4) {
        float4 const column = *reinterpret_cast<float4 const*>(floats(kKeys) + j * kStride + m);
        if (m > j) sum[0] += y[m] * column.x;
        if (m + 1 > j) sum[1] += y[m + 1] * column.y;
        if (m + 2 > j) sum[2] += y[m + 2] * column.z;
        sum[3] += y[m + 3] * column.w;
      }
      float const all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      x[j] = j > row ? 0 : (j == row ? 1.f : 0.f) - (errors ? beta * all : all);
      y[j] = errors ? x[j] : x[j] * beta;
    }
    unsigned char* s_row = smem + (errors ? kErrors : kInverse) + row * Square::kRowBytes;
#pragma unroll
    for (int j = 0; j < kChunk; j += 8)
      *reinterpret_cast<uint4*>(s_row + 2 * j) =
          make_uint4(pack<bf16>(x[j], x[j + 1]), pack<bf16>(x[j + 2], x[j + 3]), pack<bf16>(x[j + 4], x[j + 5]),
                     pack<bf16>(x[j + 6], x[j + 7]));
  }

  // Tᵀ (k e^(G_last - G)).
  __device__ __forceinline__ void store_updates() const {
    uint32_t const rest = shared_address(smem) + kRest + rows_by_lane<Rows>(lane);
    uint32_t r_t[4];
    ldmatrix_trans<4>(r_t, shared_address(smem) + kInverse + chunks_by_lane<Square>(lane));
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
      float r[2][4] = {};
      uint32_t r_b[4], r_rows[4];
      ldmatrix_trans<4>(r_b, Rows::advance(rest, 2 * step));
      mma_m16n8k16<bf16>(r[0], r_t, {r_b[0], r_b[1]});
      mma_m16n8k16<bf16>(r[1], r_t, {r_b[2], r_b[3]});
      pack_rows(r_rows, r[0], r[1]);
      store_rows(image + Image::kUpdates, r_rows, step);
    }
  }

  // P T, transposed on its way, and the inverse that gives errors.
  __device__ __forceinline__ void store_blocks() const {
    uint32_t r_p[4], r_t[4], r_e[4], r_left[2], r_right[2];
    float r[2][4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float2 const pair = *reinterpret_cast<float2 const*>(
          floats(kQueries) + (lane / 4 + e % 2 * 8) * kQueryStride + e / 2 * 8 + lane % 4 * 2);
      r_p[e] = pack<bf16>(pair.x, pair.y);
    }
    ldmatrix_trans<4>(r_t, shared_address(smem) + kInverse + rows_by_lane<Square>(lane));
    mma_m16n8k16<bf16>(r[0], r_p, {r_t[0], r_t[1]});
    mma_m16n8k16<bf16>(r[1], r_p, {r_t[2], r_t[3]});
    pack_columns(r_left, r[0]);
    pack_columns(r_right, r[1]);
    ldmatrix<4>(r_e, shared_address(smem) + kErrors + rows_by_lane<Square>(lane));
    uint4* blocks = reinterpret_cast<uint4*>(image + Image::kOutput) + lane;
    blocks[0] = make_uint4(r_left[0], r_left[1], r_right[0], r_right[1]);
    blocks[Image::kBlockBytes / 16] = make_uint4(r_e[0], r_e[1], r_e[2], r_e[3]);
  }
};
