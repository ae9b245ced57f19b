// The part of a chunk that can be computed without the state, by one warp: decayed keys and queries, and the inverses
// of their triangle.
#pragma once
#include "kda_backward/chunked/image.cuh"
#include "kda_backward/chunked/scores.cuh"

// Exponents are in base 2, relative to the start of the chunk, so that a safe gate keeps them below 116.
template <class T, class Gate, class Beta, int K, class Operands, BetaGate kBetaGate, Gating kGating, bool kSafeGate,
          bool kNormalize>
struct Prepare {
  using Image = ::Image<K, Operands>;
  using Matrix = typename Operands::template Matrix<K>;
  using Inverses = typename Operands::Inverses;
  using Block = typename Operands::Block;
  static constexpr int kSteps = K / 16;

  // Byte offsets in the warp's shared memory.
  static constexpr int kRest = 0;  // k e^(G_last - G)
  static constexpr int kScores = Matrix::kBytes;
  static constexpr int kInverses = kScores + Scores::kBytes;
  static constexpr int kBeta = kInverses + Inverses::kBytes;
  static constexpr int kBytes = (kBeta + 4 * kChunk + 127) / 128 * 128;

  unsigned char* smem;
  int lane;
  float scale;
  HeadGate<kGating> gate;
  ChunkRows<T, Gate, Beta> rows;
  unsigned char* image;

  __device__ __forceinline__ Scores scores() const { return {reinterpret_cast<float*>(smem + kScores)}; }
  __device__ __forceinline__ float* betas() const { return reinterpret_cast<float*>(smem + kBeta); }

  __device__ __forceinline__ void run() const {
    auto const factors =
        row_factors<K, kNormalize>(rows, scale, reinterpret_cast<float*>(image + Image::kLengths), lane);
    Tile r_kk[2] = {}, r_qk[2] = {};
    float lowest = 0;
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) lowest = fminf(lowest, decay(r_kk, r_qk, factors, step));
    scores().put(r_kk, r_qk, lane);
    if (!kSafeGate && __any_sync(0xffffffff, lowest < -kLargestExponent))
      scores().template put_pairs<K>(rows, factors, gate, lane);
    store_beta();
    __syncwarp();
    solve();
    __syncwarp();
    store_updates();
    store_blocks();
  }

  // Zeros fill the image up to the next matrix, since the scans copy them too.
  __device__ __forceinline__ void store_beta() const {
    bool const there = lane < kChunk && lane < rows.tokens;
    float const beta = there ? beta_of<kBetaGate>(to_float(rows.beta[lane * rows.beta_stride])) : 0;
    if (lane < kChunk) betas()[lane] = beta;
    if (lane < (Image::kForwardBytes - Image::kBeta) / 4) reinterpret_cast<float*>(image + Image::kBeta)[lane] = beta;
  }

  // Computes sixteen channels for the image and the scores. Returns their lowest exponent.
  __device__ __forceinline__ float decay(Tile (&r_kk)[2], Tile (&r_qk)[2], RowFactors const& factors, int step) const {
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
        float const exponent = exponents[e] - Operands::kCentre, total = e % 2 ? last.y : last.x;
        float const in = exp2_approx(exponent);
        k[t][e] *= factors.k[e / 2];
        up[t][e] = k[t][e] * exp2_approx(-exponent);
        rest[t][e] = k[t][e] * exp2_approx(total - exponents[e]);
        q[t][e] *= in * factors.q[e / 2];
        k[t][e] *= in;
        lowest = fminf(lowest, total);
      }
      if (lane < 4)
        *reinterpret_cast<float2*>(image + Image::decay(channel / 2 + lane)) =
            make_float2(exp2_approx(last.x), exp2_approx(last.y));
    }
    Block r_q, r_k, r_up, r_rest;
    Operands::pack(r_q, q[0], q[1]);
    Operands::pack(r_k, k[0], k[1]);
    Operands::pack(r_up, up[0], up[1]);
    Operands::pack(r_rest, rest[0], rest[1]);
    Operands::multiply(r_kk[0], r_kk[1], r_k, r_up);
    Operands::multiply(r_qk[0], r_qk[1], r_q, r_up);
    if constexpr (Operands::kCentre != 0) {
      from_centre(r_q, q);
      from_centre(r_k, k);
    }
    Operands::negate(r_k);  // the image has -k
    Matrix::put_columns(image + Image::kQueryColumns, r_q, step, lane);
    if (Operands::kTwice) Matrix::put_rows(image + Image::kKeyRows, r_k, step, lane);
    Matrix::put_columns(image + Image::kKeyColumns, r_k, step, lane);
    Matrix::put_columns(smem + kRest, r_rest, step, lane);
    return lowest;
  }
  // Converts values decayed from another reference point to decay from the start of the chunk.
  static __device__ __forceinline__ void from_centre(Block& r, Tile (&x)[2]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[0][e] *= Operands::kCentreFactor, x[1][e] *= Operands::kCentreFactor;
    Operands::pack(r, x[0], x[1]);
  }

  // Both inverses: a lane solves for one row, columns from right to left, in fp32. beta multiplies before or after the
  // sum.
  __device__ __forceinline__ void solve() const {
    int const row = lane % kChunk;
    bool const errors = lane >= kChunk;
    float x[kChunk], y[kChunk];  // the row, and the row times beta if that multiplies first
#pragma unroll
    for (int j = kChunk - 1; j >= 0; --j) {
      float const beta = betas()[j];
      float sum[4] = {};
#pragma unroll
      for (int m = (j + 1) / 4 * 4; m < kChunk; m += 4) {
        float4 const column = *reinterpret_cast<float4 const*>(scores().key_column(j) + m);
        if (m > j) sum[0] += y[m] * column.x;
        if (m + 1 > j) sum[1] += y[m + 1] * column.y;
        if (m + 2 > j) sum[2] += y[m + 2] * column.z;
        sum[3] += y[m + 3] * column.w;
      }
      float const all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      x[j] = j > row ? 0 : (j == row ? 1.f : 0.f) - (errors ? beta * all : all);
      y[j] = errors ? x[j] : x[j] * beta;
    }
    Inverses::put(smem + kInverses, image + Image::kErrors, errors, row, x);
  }

  // Tᵀ (k e^(G_last - G)).
  __device__ __forceinline__ void store_updates() const {
    Block r_t;
    Inverses::transposed(r_t, smem + kInverses, lane);
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
      Tile r[2] = {};
      Block r_rest, r_updates;
      Matrix::columns(r_rest, smem + kRest, step, lane);
      Operands::multiply(r[0], r[1], r_t, r_rest);
      Operands::pack(r_updates, r[0], r[1]);
      if (Operands::kTwice) Matrix::put_rows(image + Image::kUpdateRows, r_updates, step, lane);
      Matrix::put_columns(image + Image::kUpdateColumns, r_updates, step, lane);
    }
  }

  // (P T)ᵀ = Tᵀ Pᵀ, and the inverse that gives errors.
  __device__ __forceinline__ void store_blocks() const {
    Block r_p, r_t, r_output;
    Tile p[2], r[2] = {};
    scores().queries(p, lane);
    Operands::pack(r_p, p[0], p[1]);
    Inverses::transposed(r_t, smem + kInverses, lane);
    Operands::multiply(r[0], r[1], r_t, r_p);
    Operands::pack(r_output, r[0], r[1]);
    Operands::template store<Side::kRight>(reinterpret_cast<uint4*>(image + Image::kOutput) + Operands::lane_slot(lane),
                                          r_output);
    Inverses::store_errors(image + Image::kErrors, smem + kInverses, lane);
  }
};
