// Prep by one warp, for 16 tokens and safe 16-bit gates: a lane holds the elements that it needs as operands of mma.
#pragma once
#include "kda/chunks/chunk.cuh"
#include "kda/token.cuh"
#include "kda/chunks/triangle.cuh"
#include "math.cuh"
#include "mma.cuh"
#include "movmatrix.cuh"
#include "opaque.cuh"
#include "register.cuh"

// A lane owns tokens lane / 4 and lane / 4 + 8, and of each panel of 64 channels the 16 from 16 (lane % 4) on, in two
// parts that are loaded and stored 16 bytes at a time, without bank conflicts. Pairs of adjacent channels are operands,
// in an order of channels that does not affect sums over channels: so M and P are computed from registers, and k^ and
// k¯ never leave them. Gates are summed over tokens by a product with a triangle of ones. For sums over tokens,
// movmatrix transposes pairs. kTight: threads have few registers.
template <class T, class Gate, class Beta, int K, bool kNormalize, BetaGate kBetaGate, class Operands, bool kTight>
struct WarpPrep : Triangle<K, 16, 32, Operands> {
  using Tiles = Triangle<K, 16, 32, Operands>;
  using Chunk = ::Chunk<T, Gate, Beta>;
  using typename Tiles::Folds, typename Tiles::Image;
  using Tiles::floats, Tiles::image, Tiles::lane, Tiles::smem, Tiles::thread;
  static constexpr bool kOutputs = true;
  static constexpr int kParts = K / 32;
  static constexpr bool kOneByOne = kTight || (kNormalize && K == 128);  // one part after the other: fewer registers
  static constexpr int kDecay = Tiles::kTriangleBytes + (kNormalize ? 8 * 16 : 0);  // decay in the order of lanes
  static constexpr int kBytes = kDecay + 4 * 128 + 16;  // as many bytes as in Prep
  static_assert(K % 64 == 0 && Operands::kBytes == 2, "panels of 64 channels, in bf16");
  static_assert(sizeof(Gate) == 2, "gates are operands as they are");

  float scale;
  Chunk chunk;

  __device__ __forceinline__ WarpPrep(unsigned char* smem, uint32_t thread, float scale, HeadGate<Gating::kNone>,
                                      Chunk const& chunk, unsigned char* image)
      : Tiles{smem, thread, image}, scale(scale), chunk(chunk) {}

  // Elements of a part, by tokens: in memory layout, in fp32, and packed to bf16.
  template <class Element>
  using Rows = Octet<Element>[2];
  using Share = float[2][8];
  using Packed = uint32_t[2][4];

  struct Registers {
    Rows<T> q[kParts], k[kParts];
    Rows<Gate> g[kParts];
    Beta beta;
  };

  __device__ __forceinline__ void load(Registers& r, Chunk const& from) const {
    if (from.tokens >= 16)  // true for most chunks: no tests, and nothing to zero
      load_rows<true>(r, from);
    else
      load_rows<false>(r, from);
  }

  // Computes the image of a chunk. `r` contains the chunk, and afterwards `next`. `sync` synchronizes the warp; another
  // is required before the image is read.
  template <class Sync>
  __device__ __forceinline__ void prepare(Registers& r, Chunk const* next, Sync sync) const {
    bool const there = int(thread) < chunk.tokens;
    if (thread < 16) floats(Tiles::kBeta)[thread] = there ? beta_of<kBetaGate>(to_float(r.beta)) : 0;
    float k_factors[2] = {1, 1}, q_factors[2] = {scale, scale};
    if constexpr (kNormalize) {
      find_factors(k_factors, r.k, 1);
      find_factors(q_factors, r.q, scale);
    }
    Sums const sums(lane());
    float r_scores[2][2][4] = {};  // Mᵀ and Pᵀ
    Packed r_rest[kParts];
#pragma unroll
    for (int panel = 0; panel < kParts / 2; ++panel) {
      Share down[2];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        int const at = 2 * panel + part;
        Share up;
        sums.add(up, r.g[at]);
        decay(r_scores, up, down[part], r.q[at], r.k[at], q_factors, k_factors, at);
        if (lane() >= 28) store_decay(up[1], at);
        if (kOneByOne && part == 0) end_basic_block(chunk.tokens);
      }
      float4 const* s_decay = reinterpret_cast<float4 const*>(smem + kDecay) + 16 * panel + lane() % 4;
      sync();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        int const j = i / 2, half = i % 2;
        float4 const all = s_decay[4 * j];
        r_rest[2 * panel][half][j] = pack<bf16>(down[0][half][2 * j] * all.x, down[0][half][2 * j + 1] * all.y);
        r_rest[2 * panel + 1][half][j] = pack<bf16>(down[1][half][2 * j] * all.z, down[1][half][2 * j + 1] * all.w);
      }
      end_basic_block(chunk.tokens);  // otherwise ptxas would start all panels at once, and spill
    }
    copy_decay();
    if (next) load(r, *next);
    store_turned(r_scores[0]);
    sync();
    this->solve();
    sync();
    fold_keys(r_rest);
    fold_queries(r_scores[1]);
  }

 private:
  // Inclusive sums over tokens: products with a triangle of log2 e, which is represented by two values of Gate.
  struct Sums {
    uint32_t high[4], low[4];
    __device__ __forceinline__ explicit Sums(int lane) {
      float const first = to_float(from_float<Gate>(kLog2e));
      fill(high, lane, first);
      fill(low, lane, kLog2e - first);
    }
    static __device__ __forceinline__ void fill(uint32_t (&r)[4], int lane, float x) {
      int const row = lane / 4, column = lane % 4 * 2;
      r[1] = pack<Gate>(x, x);
      r[0] = r[3] = column < row ? r[1] : column == row ? pack<Gate>(x, 0) : 0;
      r[2] = 0;
#pragma unroll
      for (uint32_t& each : r) forget(each);  // otherwise the four would be gathered again for every product
    }
    __device__ __forceinline__ void add(Share& sums, Rows<Gate> const& rows) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t const b[2] = {movmatrix_trans(rows[0].pair(j)), movmatrix_trans(rows[1].pair(j))};
        float r[4] = {};
        mma_m16n8k16<Gate>(r, high, b);
        mma_m16n8k16<Gate>(r, low, b);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e / 2][2 * j + e % 2] = r[e];
      }
    }
  };

  template <bool kWhole>
  __device__ __forceinline__ void load_rows(Registers& r, Chunk const& from) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const token = lane() / 4 + 8 * half, first = lane() % 4 * 16;
      bool const there = kWhole || token < from.tokens;
      T const *q = from.q + token * from.q_stride + first, *k = from.k + token * from.k_stride + first;
      Gate const* g = from.g + token * from.g_stride + first;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        int const at = part / 2 * 64 + part % 2 * 8;
        r.q[part][half] = load_given_octet(q + at, there);
        r.k[part][half] = load_given_octet(k + at, there);
        r.g[part][half] = load_given_octet(g + at, there);
      }
    }
    if (thread < 16 && (kWhole || int(thread) < from.tokens)) r.beta = from.beta[thread * from.beta_stride];
  }

  // Computes the factors of a lane's rows: the inverse norms, of which four lanes have a quarter each.
  static __device__ __forceinline__ void find_factors(float (&factors)[2], Rows<T> (&rows)[kParts], float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float x[8];
        rows[part][half].unpack(x);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum = fmaf(x[e], x[e], sum);
        uint4& bits = rows[part][half].bits;
        forget(bits.x), forget(bits.y), forget(bits.z), forget(bits.w);  // in fp32 they would fill the registers
      }
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
      factors[half] = rsqrtf(sum + kL2Epsilon) * scale;
    }
  }

  // Stores a part's decayed keys and queries in the image, and adds to Mᵀ and Pᵀ. `up` contains exponents, and is
  // overwritten by e^G; `down` becomes k^.
  __device__ __forceinline__ void decay(float (&r_scores)[2][2][4], Share& up, Share& down, Rows<T> const& q_rows,
                                        Rows<T> const& k_rows, float const (&q_factors)[2], float const (&k_factors)[2],
                                        int part) const {
    Packed r_down, r_rows;
    float k[2][8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      k_rows[half].unpack(k[half]);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float const key = k[half][e] * k_factors[half];
        down[half][e] = key * exp2_approx(-up[half][e]);
        up[half][e] = exp2_approx(up[half][e]);
        k[half][e] = -key * up[half][e];
      }
    }
    put(r_down, down);
    put(r_rows, k);
    store(this->keys(), r_rows, part);
    multiply(r_scores[0], r_down, r_rows);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      q_rows[half].unpack(k[half]);
#pragma unroll
      for (int e = 0; e < 8; ++e) k[half][e] = k[half][e] * q_factors[half] * up[half][e];
    }
    put(r_rows, k);
    store(this->queries(), r_rows, part);
    multiply(r_scores[1], r_down, r_rows);
  }
  // Stores e^G of the last token, for a part.
  __device__ __forceinline__ void store_decay(float const (&last)[8], int part) const {
    float2* s_decay = reinterpret_cast<float2*>(smem + kDecay) + 32 * (part / 2) + 2 * (lane() % 4) + part % 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) s_decay[8 * j] = make_float2(last[2 * j], last[2 * j + 1]);
  }
  // Copies it to the image, four pairs of channels at a time.
  __device__ __forceinline__ void copy_decay() const {
    int const panel = lane() / 16, j = lane() % 4, group = lane() / 4 % 4;
    if (lane() < K / 4)
      reinterpret_cast<float4*>(image + Image::kDecay)[lane()] =
          reinterpret_cast<float4 const*>(smem + kDecay)[16 * panel + 4 * j + group];
  }
  // Multiplies k^ by a part's rows: pairs are directly operands, and pairs to be stored are adjacent.
  static __device__ __forceinline__ void multiply(float (&r)[2][4], Packed const& down, Packed const& rows) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      uint32_t const a[4] = {down[0][j], down[1][j], down[0][j + 1], down[1][j + 1]};
#pragma unroll
      for (int half = 0; half < 2; ++half) mma_m16n8k16<bf16>(r[half], a, {rows[half][j], rows[half][j + 1]});
    }
  }
  static __device__ __forceinline__ void put(Packed& r, Share const& x) {
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i / 4][i % 4] = pack<bf16>(x[i / 4][i % 4 * 2], x[i / 4][i % 4 * 2 + 1]);
  }
  // Stores a part in a tile of the image.
  __device__ __forceinline__ void store(unsigned char* tile, Packed const& rows, int part) const {
    using Layout = typename Tiles::Rows;
    uint32_t const at = Layout::advance(Layout::offset(lane() / 4, lane() % 4 * 2), part / 2 * 8 + part % 2);
#pragma unroll
    for (int half = 0; half < 2; ++half)  // the swizzle has a period of 8 rows
      *reinterpret_cast<uint4*>(tile + at + half * 8 * Layout::kRowBytes) =
          make_uint4(rows[half][0], rows[half][1], rows[half][2], rows[half][3]);
  }

  // Stores M from its transpose.
  __device__ __forceinline__ void store_turned(float const (&r)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = lane() % 4 * 2 + i % 2 + i / 2 * 8;
      float const beta = -floats(Tiles::kBeta)[row];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const column = lane() / 4 + 8 * half;
        floats(Tiles::kTriangle)[Tiles::element(row, column)] = column < row ? r[i / 2][i % 2 + 2 * half] * beta : 0;
      }
    }
  }
  // The updates T'ᵀ k¯.
  __device__ __forceinline__ void fold_keys(Packed const (&r_rest)[kParts]) const {
    uint32_t r_inverse[4];
    Folds::load_inverse(r_inverse, shared_address(smem) + Tiles::kT, 0, 0, lane());
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Packed const& rest = r_rest[part];
      Packed r_updates;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float r[4] = {};
        mma_m16n8k16<bf16>(r, r_inverse, {movmatrix_trans(rest[0][j]), movmatrix_trans(rest[1][j])});
        r_updates[0][j] = pack<bf16>(r[0], r[1]);
        r_updates[1][j] = pack<bf16>(r[2], r[3]);
      }
      store(this->inverse_keys(), r_updates, part);
    }
  }
  // P T' from Pᵀ.
  __device__ __forceinline__ void fold_queries(float const (&r_scores)[2][4]) const {
    uint32_t r_b[4];
    float r[2][4] = {};
    ldmatrix_trans<4>(r_b, shared_address(smem) + Tiles::kT + rows_by_lane<typename Folds::Square>(lane()));
    int const row = lane() % 4 * 2, column = lane() / 4;
    auto const on_diagonal = [&](float low, float high) {
      return movmatrix_trans(pack<bf16>(column <= row ? low : 0, column <= row + 1 ? high : 0));
    };
    uint32_t const below = movmatrix_trans(pack<bf16>(r_scores[1][0], r_scores[1][1]));
    uint32_t const a[4] = {on_diagonal(r_scores[0][0], r_scores[0][1]), below, 0,
                           on_diagonal(r_scores[1][2], r_scores[1][3])};
    Operands::multiply(r[0], r[1], a, r_b);
    Folds::store_queries(image + Image::kOutput, r, lane());
  }
};
