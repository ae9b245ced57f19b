// 32-bit operands: m16n8k8 on fp32 rounded to tf32, or split into two tf32 terms for the accuracy of fp32.
#pragma once
#include "kda/chunks/chunk.cuh"
#include "kda/chunks/products.cuh"

// Bytes of a row if a warp reads 4 rows at a time, 32 bytes of each: without bank conflicts if rows are an odd multiple
// of 32 bytes.
constexpr __host__ __device__ int column_stride(int bytes) { return 32 * (bytes / 32 | 1); }

// An operand of 8 columns of fp32 has the size of one of 16 columns in 16 bits, and ldmatrix loads it in the same way.
// It cannot transpose it, however: data read in both orientations are stored twice.
//
// Column c of an accumulator tile is column c % 2 * 4 + c / 2 of the product, since columns_by_lane uses that order for
// the columns of operand B. A lane's two columns are then those that it needs for operand A, so that a tile is directly
// an operand.
//
// kSplit: x is big + small, two tf32 terms, and small is truncated at 2^-22 of x; all products except small times small
// are summed (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
template <bool kInTwo>
struct Tf32Operands {
  static constexpr bool kSplit = kInTwo;
  static constexpr int kBytes = 4;  // bytes per element
  static constexpr int kStep = 8;   // elements of the contraction per product
  // Base-2 exponents are relative to this one, and the factor is 2 to it: a safe gate reaches -116, and small values
  // stay normal.
  static constexpr float kCentre = kSplit ? -58 : 0, kCentreFactor = kSplit ? 0x1p-58f : 1;
  using A = uint32_t[kSplit ? 8 : 4];  // 16 rows; big, then small
  using B = uint32_t[4];               // 16 columns

  static constexpr __host__ __device__ int column_of(int c) { return c % 2 * 4 + c / 2; }
  // The column of an accumulator tile of 8, and the row of 16 if rows are values, of a lane's element e.
  static __device__ __forceinline__ int column(int lane, int e) { return lane % 4 + e % 2 * 4; }
  static __device__ __forceinline__ int value(int lane, int e) { return lane / 4 * 2 + e / 2; }

  // This lane's ldmatrix offset in 16 rows that are columns of the product, and in 16 that are rows in their order.
  template <class Layout>
  static __device__ __forceinline__ uint32_t columns_by_lane(int lane) {
    return Layout::offset(lane / 16 * 8 + column_of(lane % 8), lane / 8 % 2);
  }
  template <class Layout>
  static __device__ __forceinline__ uint32_t ordered_rows_by_lane(int lane) {
    return Layout::offset(lane / 8 % 2 * 8 + column_of(lane % 8), lane / 16);
  }
  static __device__ __forceinline__ void load(A& r_a, uint32_t address) {
    uint32_t bits[4];
    ldmatrix<4>(bits, address);
    operand(r_a, bits);
  }

  // The stored form of an element: what mma reads, or what is split when it is read.
  static __device__ __forceinline__ uint32_t element(float x) { return kSplit ? __float_as_uint(x) : round_tf32(x); }
  static __device__ __forceinline__ void put(void* p, float x) { *reinterpret_cast<uint32_t*>(p) = element(x); }
  static __device__ __forceinline__ void put(void* p, float lo, float hi) {
    uint2 const pair = make_uint2(element(lo), element(hi));
    *reinterpret_cast<uint2*>(p) = pair;
  }
  static __device__ __forceinline__ void put(void* p, float const (&x)[4]) {
    *reinterpret_cast<uint4*>(p) = make_uint4(element(x[0]), element(x[1]), element(x[2]), element(x[3]));
  }
  // Stores a lane's two elements of a row of an accumulator tile.
  static __device__ __forceinline__ void put_columns(unsigned char* row, int lane, float lo, float hi) {
    put(row + 4 * (lane % 4), lo);
    put(row + 4 * (lane % 4) + 16, hi);
  }

  static __device__ __forceinline__ uint32_t small_of(uint32_t bits) {
    return __float_as_uint(__uint_as_float(bits) - __uint_as_float(round_tf32(__uint_as_float(bits))));
  }
  static __device__ __forceinline__ void operand(A& r_a, uint32_t const (&bits)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r_a[i] = kSplit ? round_tf32(__uint_as_float(bits[i])) : bits[i];
      if constexpr (kSplit) r_a[4 + i] = small_of(bits[i]);
    }
  }
  template <int kN>
  static __device__ __forceinline__ void operand(A& r_a, float const (&r)[kN][4], int step) {
    float const(&tile)[4] = r[step];
    operand(r_a, {element(tile[0]), element(tile[2]), element(tile[1]), element(tile[3])});
  }
  static __device__ __forceinline__ void multiply(float (&left)[4], float (&right)[4], A const& a, B const& b) {
    multiply(left, a, b[0], b[1]);
    multiply(right, a, b[2], b[3]);
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], A const& a, uint32_t b0, uint32_t b1) {
    if constexpr (!kSplit) {
      mma_m16n8k8_tf32(d, a, {b0, b1});
    } else {
      uint32_t const big[2] = {round_tf32(__uint_as_float(b0)), round_tf32(__uint_as_float(b1))};
      mma_m16n8k8_tf32(d, {a[4], a[5], a[6], a[7]}, big);
      mma_m16n8k8_tf32(d, {a[0], a[1], a[2], a[3]}, {small_of(b0), small_of(b1)});
      mma_m16n8k8_tf32(d, {a[0], a[1], a[2], a[3]}, big);

    }
  }

  template <int K, int C>
  using ImageRows = TileRows<K, C, kBytes>;

  // Byte offset of a channel's decay among those of 16: the channels of a lane's accumulators are adjacent.
  static constexpr __host__ __device__ int decay(uint32_t channel) {
    return channel % 4 * 16 + channel / 8 * 8 + channel % 8 / 4 * 4;
  }

  // Products with T', which is stored transposed. They use columns of k¯, whose rows have a stride without bank
  // conflicts; the updates are computed transposed, [K, C].
  template <int K, int C>
  struct Folds {
    using Square = ::Rows<2 * C, false>;
    using Updates = ::Rows<2 * C, true>;
    static constexpr int kRestRow = column_stride(4 * K);
    static constexpr int kRestBytes = C * kRestRow;

    static __device__ __forceinline__ uint32_t rest(int row, int quad) { return row * kRestRow + 16 * quad; }
    static __device__ __forceinline__ uint32_t block(int i, int j) { return i * 16 * Square::kRowBytes + 64 * j; }

    // A row of (I - x) diag(beta), with x zero from the diagonal on.
    static __device__ __forceinline__ void store_inverse(unsigned char* s_inverse, int row, float const (&x)[C],
                                                         float const* beta) {
#pragma unroll
      for (int j = 0; j < C; ++j) put(s_inverse + j * Square::kRowBytes + 4 * row, -x[j] * beta[j]);
      put(s_inverse + row * Square::kRowBytes + 4 * row, beta[row]);
    }
    // r [channels, tokens] += k¯(i)ᵀ T'(i, j), for 16 channels.
    static __device__ __forceinline__ void keys(float (&r)[2][4], uint32_t s_inverse, uint32_t,
                                                unsigned char const* rest, int i, int j, int step, int lane) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        uint32_t bits[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          bits[e] = *reinterpret_cast<uint32_t const*>(rest + (i * 16 + s * 8 + lane % 4 + e / 2 * 4) * kRestRow +
                                                       4 * (step * 16 + lane / 4 + e % 2 * 8));
        A r_a;
        B r_b;
        operand(r_a, bits);
        ldmatrix<4>(r_b, s_inverse + block(j, i) + 32 * s + columns_by_lane<Square>(lane));
        multiply(r[0], r[1], r_a, r_b);
      }
    }
    static __device__ __forceinline__ void store_keys(unsigned char* tile, float const (&r)[2][4], int j, int step,
                                                      int lane) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        int const row = step * 16 + lane / 4 + e / 2 % 2 * 8, chunk = j * 4 + e / 4 * 2 + e % 2;
        put(tile + Updates::offset(row, chunk) + 4 * (lane % 4), r[e / 4][e % 4]);
      }
    }
    static __device__ __forceinline__ uint32_t updates_by_lane(int lane) { return columns_by_lane<Updates>(lane); }
    // Operand B of the `channels`-th 16 channels and the `tokens`-th 8 tokens; `tile` is this lane's address.
    static __device__ __forceinline__ void load_updates(B& r_b, uint32_t tile, int channels, int tokens) {
      ldmatrix<4>(r_b, Updates::advance(tile, 2 * tokens) + channels * 16 * Updates::kRowBytes);
    }

    // r += P(i, m) T'(m, j), with rows in the order of columns of an accumulator.
    static __device__ __forceinline__ void queries(float (&r)[2][4], uint32_t s_scores, uint32_t s_inverse, int i,
                                                   int m, int j, int lane) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        A r_a;
        B r_b;
        load(r_a, s_scores + block(i, m) + 32 * s + ordered_rows_by_lane<Square>(lane));
        ldmatrix<4>(r_b, s_inverse + block(j, m) + 32 * s + columns_by_lane<Square>(lane));
        multiply(r[0], r[1], r_a, r_b);
      }
    }
    // Stored as operands B of the transposed product.
    static __device__ __forceinline__ void store_queries(unsigned char* block, float const (&r)[2][4], int lane) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        uint4 const step = make_uint4(element(r[s][0]), element(r[s][1]), element(r[s][2]), element(r[s][3]));
        *reinterpret_cast<uint4*>(block + 512 * s + 16 * lane) = step;
      }
    }
  };

  // v and o of a chunk. The rows of vᵀ that a lane holds are adjacent in v, and in o.
  template <class T, int BV, int C, int kM>
  struct Values {
    using Registers = Pair<T>[kM][C / 8][2];
    static constexpr int kRowBytes = column_stride(BV * sizeof(T));

    static __device__ __forceinline__ uint32_t offset(int row, int chunk) { return row * kRowBytes + 16 * chunk; }
    static __device__ __forceinline__ void load(Registers& r, unsigned char const* values, uint32_t, int first,
                                                int lane) {
#pragma unroll
      for (int i = 0; i < kM * C / 4; ++i) {
        int const m = i / (C / 4), n = i / 2 % (C / 8), e = i % 2;
        T const* row = reinterpret_cast<T const*>(values + (n * 8 + column(lane, e)) * kRowBytes);
        r[m][n][e] = load_pair(row + first + m * 16 + value(lane, 0), true);
      }
    }
    static __device__ __forceinline__ void unpack(float (&r_x)[kM][C / 8][4], Registers const& r) {
#pragma unroll
      for (int i = 0; i < kM * C / 4; ++i) {
        int const m = i / (C / 4), n = i / 2 % (C / 8), e = i % 2;
        r_x[m][n][e] = r[m][n][e].lo();
        r_x[m][n][2 + e] = r[m][n][e].hi();
      }
    }
    static __device__ __forceinline__ void store(T* g_o, int64_t stride, float const (&r)[4], int n, int m,
                                                 int tokens, int lane) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        int const token = n * 8 + column(lane, e);
        if (token < tokens) store_pair(g_o + token * stride + m * 16 + value(lane, 0), r[e], r[2 + e]);
      }
    }
  };
};
