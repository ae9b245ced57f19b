// 32-bit operands: m16n8k8 on fp32 rounded to tf32, or split into two tf32 terms for the accuracy of fp32.
//
// Elements t and t + 4 of the contraction are columns 2t and 2t + 1 of a tile, as in a lane's accumulators: a tile is
// directly an operand A, and its halves are operands B of its transpose.
//
// kSplit: x is big + small, two tf32 terms, and small is truncated at 2^-22 of x; all products except small times small
// are summed (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
#pragma once
#include "kda_backward/chunked/block.cuh"
#include "mma.cuh"

template <bool kInTwo>
struct Tf32Operands {
  using Element = float;
  static constexpr int kBytes = 4;  // bytes per element
  static constexpr bool kSplit = kInTwo;
  static constexpr bool kTwice = true;  // whether a matrix that is read in both orientations is stored twice
  // Base-2 exponents are relative to this one, and the factor is 2 to it: a safe gate reaches -116, and small values
  // stay normal.
  static constexpr float kCentre = kSplit ? -58 : 0, kCentreFactor = kSplit ? 0x1p-58f : 1;
  using Block = uint32_t[8];  // two tiles of accumulators
  using Half = uint32_t[4];

  // The row of 16, if rows are values, of element e of an accumulator tile: a lane's two rows are adjacent.
  static __device__ __forceinline__ int value(int lane, int e) { return lane / 4 * 2 + e / 2; }

  // The stored form: what mma reads, or what is split when it is read.
  static __device__ __forceinline__ uint32_t element(float x) { return kSplit ? __float_as_uint(x) : round_tf32(x); }

  static __device__ __forceinline__ void put_element(void* p, float x) { *reinterpret_cast<uint32_t*>(p) = element(x); }

  static __device__ __forceinline__ void pack(Block& r, Tile const& left, Tile const& right) {
#pragma unroll
    for (int e = 0; e < 4; ++e) r[e] = element(left[e]), r[4 + e] = element(right[e]);
  }
  static __device__ __forceinline__ void unpack(Tile& left, Tile& right, Block const& r) {
#pragma unroll
    for (int e = 0; e < 4; ++e) left[e] = __uint_as_float(r[e]), right[e] = __uint_as_float(r[4 + e]);
  }
  static __device__ __forceinline__ void negate(Block& r) {
#pragma unroll
    for (int e = 0; e < 8; ++e) r[e] ^= 0x80000000u;
  }

  // Eight rows of eight, of which a lane has two adjacent elements. Lanes of odd rows have them in reverse order, so
  // that each shuffle uses one register of every lane.
  static __device__ __forceinline__ void transpose(uint32_t& even, uint32_t& odd) {
    int const lane = threadIdx.x % 32, row = lane / 4, turn = row % 2, source = lane % 4 * 8 + row / 2;
    uint32_t const first = turn ? odd : even, second = turn ? even : odd;
    uint32_t const own = __shfl_sync(0xffffffff, first, source + 4 * turn);
    uint32_t const other = __shfl_sync(0xffffffff, second, source + 4 - 4 * turn);
    even = turn ? other : own, odd = turn ? own : other;
  }
  static __device__ __forceinline__ void transpose(Block& r_t, Block const& r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const from = i / 2 + i % 2 * 2;  // the block across the diagonal
      r_t[2 * i] = r[2 * from], r_t[2 * i + 1] = r[2 * from + 1];
      transpose(r_t[2 * i], r_t[2 * i + 1]);
    }
  }
  // A tile of 16 rows, transposed.
  static __device__ __forceinline__ void pack_transposed(Half& r_t, Tile const& r) {
#pragma unroll
    for (int e = 0; e < 4; ++e) r_t[e] = element(r[e]);
    transpose(r_t[0], r_t[1]);
    transpose(r_t[2], r_t[3]);
  }

  // left, right += X Yᵀ; left: for the first eight rows of Y; Half has only these.
  static __device__ __forceinline__ void multiply(Tile& left, Tile& right, Block const& x, Block const& y) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      multiply(left, {x[4 * s], x[4 * s + 2], x[4 * s + 1], x[4 * s + 3]}, y[4 * s], y[4 * s + 1]);
      multiply(right, {x[4 * s], x[4 * s + 2], x[4 * s + 1], x[4 * s + 3]}, y[4 * s + 2], y[4 * s + 3]);
    }
  }
  static __device__ __forceinline__ void multiply(Tile& left, Block const& x, Half const& y) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
      multiply(left, {x[4 * s], x[4 * s + 2], x[4 * s + 1], x[4 * s + 3]}, y[2 * s], y[2 * s + 1]);
  }
  static __device__ __forceinline__ void multiply(Tile& d, uint32_t const (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (!kSplit) {
      mma_m16n8k8_tf32(d, a, {b0, b1});
    } else {
      uint32_t const big[4] = {big_of(a[0]), big_of(a[1]), big_of(a[2]), big_of(a[3])};
      mma_m16n8k8_tf32(d, {small_of(a[0]), small_of(a[1]), small_of(a[2]), small_of(a[3])}, {big_of(b0), big_of(b1)});
      mma_m16n8k8_tf32(d, big, {small_of(b0), small_of(b1)});
      mma_m16n8k8_tf32(d, big, {big_of(b0), big_of(b1)});
    }
  }
  static __device__ __forceinline__ uint32_t big_of(uint32_t bits) { return round_tf32(__uint_as_float(bits)); }
  static __device__ __forceinline__ uint32_t small_of(uint32_t bits) {
    return __float_as_uint(__uint_as_float(bits) - __uint_as_float(big_of(bits)));
  }

  // The elements of pairs with one in the first half of an aligned group of 2 << level, and one in the second.
  static __device__ __forceinline__ void keep_level(Block& r_level, Block const& r, int level, int lane) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      int const row = e / 2 % 2 * 8 + lane / 4, column = e / 4 * 8 + lane % 4 * 2 + e % 2;
      r_level[e] = (row ^ column) >> level == 1 ? r[e] : 0;
    }
  }

  // Element (lane / 4 + 8 half, column) for each lane.
  static __device__ __forceinline__ float of_column(Block const& r, int half, int column, int lane) {
    int const e = 2 * half + column % 2;
    return __uint_as_float(__shfl_sync(0xffffffff, column < 8 ? r[e] : r[4 + e], lane / 4 * 4 + column % 8 / 2));
  }

  // The diagonal of X Yᵀ, accumulated: each lane has its own columns of rows lane / 4 and lane / 4 + 8.
  using Diagonal = float[2];
  static __device__ __forceinline__ void add_diagonal(Diagonal& r, Block const& x, Block const& y) {
#pragma unroll
    for (int e = 0; e < 8; ++e) r[e / 2 % 2] += __uint_as_float(x[e]) * __uint_as_float(y[e]);
  }
  // Element 8 half + lane / 4.
  static __device__ __forceinline__ float of_diagonal(Diagonal const& r, int half, int) { return quad_sum(r[half]); }

  // A tile has 16 bytes per lane in memory, whose position is rotated with its row, so that a transposition through
  // shared memory has no bank conflicts; `at` is this lane's address.
  static constexpr int kBlock = 64;  // uint4
  static __device__ __forceinline__ int lane_slot(int lane) { return lane ^ lane / 8; }
  template <Side kSide>
  static __device__ __forceinline__ void load(Block& r, uint4 const* at, bool there = true) {
    constexpr int kSecond = kSide == Side::kLeft ? 2 : 1, kThird = 3 - kSecond;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      uint4 const x = there ? at[32 * s] : make_uint4(0, 0, 0, 0);
      r[4 * s] = x.x, r[4 * s + kSecond] = x.y, r[4 * s + kThird] = x.z, r[4 * s + 3] = x.w;
    }
  }
  template <Side kSide>
  static __device__ __forceinline__ void store(uint4* at, Block const& r) {
    constexpr int kSecond = kSide == Side::kLeft ? 2 : 1, kThird = 3 - kSecond;
#pragma unroll
    for (int s = 0; s < 2; ++s) at[32 * s] = make_uint4(r[4 * s], r[4 * s + kSecond], r[4 * s + kThird], r[4 * s + 3]);
  }
  // Lanes of two rows exchange halves; each then has the data that another lane will load.
  template <Side kSide>
  static __device__ __forceinline__ void store_transposed(uint4* at, Block const& r, int lane) {
    bool const odd = lane / 4 % 2;
    Block r_t;  // block of lane `to`
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const half = i / 2, tile = i % 2, from = 4 * tile + 2 * half, e = 4 * half + 2 * tile;
      uint32_t const other = __shfl_xor_sync(0xffffffff, odd ? r[from] : r[from + 1], 4);
      r_t[e] = odd ? other : r[from], r_t[e + 1] = odd ? r[from + 1] : other;
    }
    int const to = (lane % 4 * 2 + odd) * 4 + lane / 8;
    store<kSide>(at + lane_slot(to) - lane_slot(lane), r_t);
  }

  // Matrices [16, K], or their transposes, as blocks.
  template <int K>
  struct Matrix {
    static constexpr int kBytes = 4 * kChunk * K;

    static __device__ __forceinline__ uint4 const* block(unsigned char const* matrix, int step, int lane) {
      return reinterpret_cast<uint4 const*>(matrix) + step * kBlock + lane_slot(lane);
    }
    static __device__ __forceinline__ void put_rows(unsigned char* matrix, Block const& r, int step, int lane) {
      store<Side::kRight>(const_cast<uint4*>(block(matrix, step, lane)), r);
    }
    static __device__ __forceinline__ void put_columns(unsigned char* matrix, Block const& r, int step, int lane) {
      store_transposed<Side::kRight>(const_cast<uint4*>(block(matrix, step, lane)), r, lane);
    }
    static __device__ __forceinline__ void rows(Block& r, unsigned char const* matrix, int step, int lane) {
      load<Side::kRight>(r, block(matrix, step, lane));
    }
    static __device__ __forceinline__ void columns(Block& r, unsigned char const* matrix, int step, int lane) {
      load<Side::kRight>(r, block(matrix, step, lane));
    }
  };

  // The inverses of a chunk's triangle, which lanes compute row by row.
  struct Inverses {
    static constexpr int kRow = kChunk + 4;  // floats: storing rows, and reading columns of even rows, uses all banks
    static constexpr int kBytes = 4 * kChunk * kRow;

    // Stores a row of T, or of E, at its final position, in the order of a left block.
    static __device__ __forceinline__ void put(unsigned char* s_inverses, unsigned char* errors_block, bool errors,
                                               int row, float const (&x)[kChunk]) {
      if (errors) {
#pragma unroll
        for (int j = 0; j < kChunk; ++j) {
          int const lane = row % 8 * 4 + j % 8 / 2;
          put_element(errors_block + 16 * (j / 8 * 32 + lane_slot(lane)) + 4 * (j % 2 * 2 + row / 8), x[j]);
        }
        return;
      }
#pragma unroll
      for (int j = 0; j < kChunk; j += 4)
        *reinterpret_cast<uint4*>(s_inverses + 4 * (row * kRow + j)) =
            make_uint4(element(x[j]), element(x[j + 1]), element(x[j + 2]), element(x[j + 3]));
    }
    static __device__ __forceinline__ void transposed(Block& r, unsigned char const* s_inverses, int lane) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        int const row = e / 4 * 8 + lane % 4 * 2 + e % 2, column = e / 2 % 2 * 8 + lane / 4;
        r[e] = reinterpret_cast<uint32_t const*>(s_inverses)[row * kRow + column];
      }
    }
    static __device__ __forceinline__ void store_errors(unsigned char*, unsigned char const*, int) {}
  };

  // Loads sixteen tokens of sixteen values of do from global memory, four adjacent ones per lane; `rows` as in
  // load_tile.
  template <class T>
  static __device__ __forceinline__ void load_values(Block& r, T const* rows, int64_t stride, int tokens, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const token = lane / 4 + 8 * half;
      float4 const x = load_quad(rows + token * stride + lane % 4 * 4, token < tokens);
      r[2 * half] = element(x.x), r[4 + 2 * half] = element(x.y);
      r[2 * half + 1] = element(x.z), r[4 + 2 * half + 1] = element(x.w);
    }
  }

  // v and do: rows of BV values in shared memory, read transposed: [values, tokens]. Even rows are an odd multiple of
  // 32 bytes apart, so that a warp reads columns without bank conflicts.
  template <class T, int BV>
  struct Values {
    using Registers = float2[2][2];  // registers of 16 values: [tile, token of the pair]
    static constexpr int kRowBytes = BV * sizeof(T) + 16;

    static __device__ __forceinline__ uint32_t offset(int row, int chunk) { return row * kRowBytes + 16 * chunk; }
    static __device__ __forceinline__ void load(Registers& r, unsigned char const* values, int first, int lane) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const token = i / 2 * 8 + lane % 4 * 2 + i % 2;
        T const* row = reinterpret_cast<T const*>(values + token * kRowBytes);
        r[i / 2][i % 2] = load_pair(row + first + lane / 4 * 2, true);
      }
    }
    static __device__ __forceinline__ void unpack(Tile& left, Tile& right, Registers const& r) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        left[c] = r[0][c].x, left[2 + c] = r[0][c].y;
        right[c] = r[1][c].x, right[2 + c] = r[1][c].y;
      }
    }
    static __device__ __forceinline__ void pack(Block& r_block, Registers const& r) {
      Tile left, right;
      unpack(left, right, r);
      Tf32Operands::pack(r_block, left, right);
    }
    // Stores rows to global memory, of which `tokens` exist; `g_rows`: the first of the 16 values.
    static __device__ __forceinline__ void store(T* g_rows, int64_t stride, Tile const& left, Tile const& right,
                                                 int tokens, int lane) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Tile const& r = i / 2 ? right : left;
        int const token = i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (token < tokens) store_pair(g_rows + token * stride + lane / 4 * 2, r[i % 2], r[2 + i % 2]);
      }
    }
  };
};
