// Operands in bf16, for 16-bit tensors: m16n8k16, with transposing ldmatrix if a product needs columns as rows.
#pragma once
#include "kda/chunks/chunk.cuh"
#include "kda/chunks/products.cuh"
#include "movmatrix.cuh"

struct Bf16Operands {
  static constexpr bool kSplit = false;  // whether operands are split into several terms
  static constexpr int kBytes = 2;  // bytes per element
  static constexpr int kStep = 16;  // elements of the contraction per product
  static constexpr float kCentre = 0, kCentreFactor = 1;  // reference point of exponents; differs in Tf32Operands
  using A = uint32_t[4];  // 16 rows
  using B = uint32_t[4];  // 16 columns

  // The column of an accumulator tile of 8, and the row of 16 if rows are values, of a lane's element e.
  static __device__ __forceinline__ int column(int lane, int e) { return lane % 4 * 2 + e % 2; }
  static __device__ __forceinline__ int value(int lane, int e) { return lane / 4 + e / 2 * 8; }

  // This lane's ldmatrix offset in 16 rows that are columns of the product.
  template <class Layout>
  static __device__ __forceinline__ uint32_t columns_by_lane(int lane) {
    return chunks_by_lane<Layout>(lane);
  }
  static __device__ __forceinline__ void load(A& r_a, uint32_t address) { ldmatrix<4>(r_a, address); }

  // Stores two adjacent elements of a row, one element, and four.
  static __device__ __forceinline__ void put(void* p, float lo, float hi) {
    *reinterpret_cast<uint32_t*>(p) = pack<bf16>(lo, hi);
  }
  static __device__ __forceinline__ void put(void* p, float x) { *reinterpret_cast<bf16*>(p) = from_float<bf16>(x); }
  static __device__ __forceinline__ void put(void* p, float const (&x)[4]) {
    *reinterpret_cast<uint2*>(p) = make_uint2(pack<bf16>(x[0], x[1]), pack<bf16>(x[2], x[3]));
  }
  // Stores a lane's two elements of a row of an accumulator tile.
  static __device__ __forceinline__ void put_columns(unsigned char* row, int lane, float lo, float hi) {
    put(row + 4 * (lane % 4), lo, hi);
  }

  // Two adjacent accumulator tiles, rounded, form one operand A without any exchange between lanes.
  template <int kN>
  static __device__ __forceinline__ void operand(A& r_a, float const (&r)[kN][4], int step) {
    float const(&left)[4] = r[2 * step], (&right)[4] = r[2 * step + 1];
    r_a[0] = pack<bf16>(left[0], left[1]);
    r_a[1] = pack<bf16>(left[2], left[3]);
    r_a[2] = pack<bf16>(right[0], right[1]);
    r_a[3] = pack<bf16>(right[2], right[3]);
  }
  static __device__ __forceinline__ void multiply(float (&left)[4], float (&right)[4], A const& a, B const& b) {
    multiply(left, a, b[0], b[1]);
    multiply(right, a, b[2], b[3]);
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], A const& a, uint32_t b0, uint32_t b1) {
    mma_m16n8k16<bf16>(d, a, {b0, b1});
  }

  template <int K, int C>
  using ImageRows = TileRows<K, C, kBytes>;

  // Byte offset of a channel's decay among those of 16: the channels of a lane's accumulators are adjacent.
  static constexpr __host__ __device__ int decay(uint32_t channel) {
    return channel % 8 / 2 * 16 + channel / 8 * 8 + channel % 2 * 4;
  }

  // Products with T': k¯ is stored in rows like the decayed keys, the updates [C, K] in the layout Updates, and T'
  // untransposed.
  template <int K, int C, class Updates = ImageRows<K, C>>
  struct Folds {
    using Rows = ::Rows<K, true>;
    using Square = ::Rows<C, false>;
    static constexpr int kRestBytes = C * Rows::kRowBytes;

    static __device__ __forceinline__ uint32_t rest(int row, int quad) {
      return Rows::offset(row, quad / 2) + quad % 2 * 8;
    }
    static __device__ __forceinline__ uint32_t block(int i, int j) { return i * 16 * Square::kRowBytes + 32 * j; }

    // A row of (I - x) diag(beta), with x zero from the diagonal on: stored 16 bytes at a time, and rows of 48 or 80
    // bytes start in different banks.
    static __device__ __forceinline__ void store_inverse(unsigned char* s_inverse, int row, float const (&x)[C],
                                                         float const* beta) {
#pragma unroll
      for (int j = 0; j < C; j += 8) {
        auto const both = [&](int i) { return pack<bf16>(-x[i] * beta[i], -x[i + 1] * beta[i + 1]); };
        *reinterpret_cast<uint4*>(s_inverse + row * Square::kRowBytes + 2 * j) =
            make_uint4(both(j), both(j + 2), both(j + 4), both(j + 6));
      }
      unsigned char* s_diagonal = s_inverse + row * (Square::kRowBytes + 2);
      if (row < 16) put(s_diagonal, beta[row]);  // 16 of its elements are in different banks, 32 are not
      if (C > 16 && row >= 16) put(s_diagonal, beta[row]);
    }
    // r [tokens, channels] += T'(i, j)ᵀ k¯(i), for 16 channels.
    static __device__ __forceinline__ void keys(float (&r)[2][4], uint32_t s_inverse, uint32_t s_rest,
                                                unsigned char const*, int i, int j, int step, int lane) {
      A r_inverse;
      load_inverse(r_inverse, s_inverse, i, j, lane);
      add_keys(r, r_inverse, s_rest, i, step, lane);
    }
    static __device__ __forceinline__ void load_inverse(A& r, uint32_t s_inverse, int i, int j, int lane) {
      ldmatrix_trans<4>(r, s_inverse + block(i, j) + chunks_by_lane<Square>(lane));
    }
    static __device__ __forceinline__ void add_keys(float (&r)[2][4], A const& r_inverse, uint32_t s_rest, int i,
                                                    int step, int lane) {
      B r_b;
      ldmatrix_trans<4>(r_b, Rows::advance(s_rest + rows_by_lane<Rows>(lane), 2 * step) + i * 16 * Rows::kRowBytes);
      multiply(r[0], r[1], r_inverse, r_b);
    }
    static __device__ __forceinline__ void store_keys(unsigned char* tile, float const (&r)[2][4], int j, int step,
                                                      int lane) {
      uint32_t const at = Updates::offset(lane / 4, 0) + lane % 4 * 4;  // the swizzle has a period of 8 rows
#pragma unroll
      for (int e = 0; e < 4; ++e)
        put(tile + Updates::advance(at, step * 2 + e / 2) + (j * 16 + e % 2 * 8) * Updates::kRowBytes, r[e / 2][e % 2 * 2],
            r[e / 2][e % 2 * 2 + 1]);
    }
    static __device__ __forceinline__ uint32_t updates_by_lane(int lane) { return rows_by_lane<Updates>(lane); }
    // Operand B of 16 channels from 16 tokens on; `tile` is this lane's address.
    static __device__ __forceinline__ void load_updates(B& r_b, uint32_t tile, int channels, int tokens) {
      ldmatrix_trans<4>(r_b, Updates::advance(tile, 2 * channels) + tokens * 16 * Updates::kRowBytes);
    }

    // r += P(i, m) T'(m, j).
    static __device__ __forceinline__ void queries(float (&r)[2][4], uint32_t s_scores, uint32_t s_inverse, int i,
                                                   int m, int j, int lane) {
      A r_a;
      B r_b;
      ldmatrix<4>(r_a, s_scores + block(i, m) + rows_by_lane<Square>(lane));
      ldmatrix_trans<4>(r_b, s_inverse + block(m, j) + rows_by_lane<Square>(lane));
      multiply(r[0], r[1], r_a, r_b);
    }
    // Stored as operands B of the transposed product.
    static __device__ __forceinline__ void store_queries(unsigned char* block, float const (&r)[2][4], int lane) {
      *reinterpret_cast<uint4*>(block + 16 * lane) =
          make_uint4(pack<bf16>(r[0][0], r[0][1]), pack<bf16>(r[1][0], r[1][1]), pack<bf16>(r[0][2], r[0][3]),
                     pack<bf16>(r[1][2], r[1][3]));
    }
  };

  // v and o of a chunk: a lane's share of vᵀ is loaded with ldmatrix, that of oᵀ transposed with movmatrix.
  template <class T, int BV, int C, int kM>
  struct Values {
    static_assert(sizeof(T) == 2, "bf16 operands are of 16-bit tensors");
    using Rows = ::Rows<BV, true>;
    using Registers = uint32_t[kM][C / 16][4];
    static constexpr int kRowBytes = Rows::kRowBytes;

    static __device__ __forceinline__ uint32_t offset(int row, int chunk) { return Rows::offset(row, chunk); }
    static __device__ __forceinline__ void load(Registers& r, unsigned char const*, uint32_t s_values, int first,
                                                int lane) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int sub = 0; sub < C / 16; ++sub) {
          int const row = sub * 16 + lane / 16 * 8 + lane % 8, chunk = first / 8 + 2 * m + lane / 8 % 2;
          ldmatrix_trans<4>(r[m][sub], s_values + Rows::offset(row, chunk));
        }
    }
    static __device__ __forceinline__ void unpack(float (&r_x)[kM][C / 8][4], Registers const& r) {
#pragma unroll
      for (int i = 0; i < kM * C / 4; ++i) {
        int const m = i / (C / 4), sub = i / 4 % (C / 16), e = i % 4;
        r_x[m][2 * sub + e / 2][e % 2 * 2] = unpack_lo<T>(r[m][sub][e]);
        r_x[m][2 * sub + e / 2][e % 2 * 2 + 1] = unpack_hi<T>(r[m][sub][e]);
      }
    }
    static __device__ __forceinline__ void store(T* g_o, int64_t stride, float const (&r)[4], int n, int m,
                                                 int tokens, int lane) {
      uint32_t const low = movmatrix_trans(pack<T>(r[0], r[1]));
      uint32_t const high = movmatrix_trans(pack<T>(r[2], r[3]));
      int const token = n * 8 + lane / 4;
      T* g_pair = g_o + token * stride + m * 16 + lane % 4 * 2;
      if (token < tokens) {
        *reinterpret_cast<uint32_t*>(g_pair) = low;
        *reinterpret_cast<uint32_t*>(g_pair + 8) = high;
      }
    }
  };
};
