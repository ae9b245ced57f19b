// Operands in bf16, for 16-bit tensors: m16n8k16, with ldmatrix and movmatrix if a product needs a block transposed.
#pragma once
#include "kda_backward/chunked/block.cuh"
#include "flash_attention/rows.cuh"
#include "ldmatrix.cuh"
#include "mma.cuh"
#include "movmatrix.cuh"
#include "thread.cuh"

// A pair of T as the pair of bf16 that products use.
template <class T>
__device__ __forceinline__ uint32_t bf16_pair(uint32_t pair) {
  return pack<bf16>(unpack_lo<T>(pair), unpack_hi<T>(pair));
}
template <>
__device__ __forceinline__ uint32_t bf16_pair<bf16>(uint32_t pair) { return pair; }

struct Bf16Operands {
  using Element = bf16;
  static constexpr int kBytes = 2;       // bytes per element
  static constexpr bool kSplit = false;  // whether operands are split into several terms
  static constexpr bool kTwice = false;  // whether a matrix that is read in both orientations is stored twice
  static constexpr float kCentre = 0;    // reference point of exponents; differs in Tf32Operands
  static constexpr float kCentreFactor = 1;
  using Block = uint32_t[4];  // operand A directly; the operands B of its transpose are {0, 2} and {1, 3}
  using Half = uint32_t[2];

  // The row of 16, if rows are values, of element e of an accumulator tile.
  static __device__ __forceinline__ int value(int lane, int e) { return lane / 4 + e / 2 * 8; }

  static __device__ __forceinline__ void pack(Block& r, Tile const& left, Tile const& right) {
    r[0] = ::pack<bf16>(left[0], left[1]);
    r[1] = ::pack<bf16>(left[2], left[3]);
    r[2] = ::pack<bf16>(right[0], right[1]);
    r[3] = ::pack<bf16>(right[2], right[3]);
  }
  static __device__ __forceinline__ void unpack(Tile& left, Tile& right, Block const& r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      left[2 * half] = unpack_lo<bf16>(r[half]), left[2 * half + 1] = unpack_hi<bf16>(r[half]);
      right[2 * half] = unpack_lo<bf16>(r[2 + half]), right[2 * half + 1] = unpack_hi<bf16>(r[2 + half]);
    }
  }
  static __device__ __forceinline__ void negate(Block& r) {
#pragma unroll
    for (int e = 0; e < 4; ++e) r[e] ^= 0x80008000u;
  }
  static __device__ __forceinline__ void transpose(Block& r_t, Block const& r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) r_t[i] = movmatrix_trans(r[i / 2 + i % 2 * 2]);
  }
  // A tile of 16 rows, transposed.
  static __device__ __forceinline__ void pack_transposed(Half& r_t, Tile const& r) {
    r_t[0] = movmatrix_trans(::pack<bf16>(r[0], r[1]));
    r_t[1] = movmatrix_trans(::pack<bf16>(r[2], r[3]));
  }
  // left, right += X Yᵀ; left: for the first eight rows of Y; Half has only these.
  static __device__ __forceinline__ void multiply(Tile& left, Tile& right, Block const& x, Block const& y) {
    mma_m16n8k16<bf16>(left, x, {y[0], y[2]});
    mma_m16n8k16<bf16>(right, x, {y[1], y[3]});
  }
  static __device__ __forceinline__ void multiply(Tile& left, Block const& x, Half const& y) {
    mma_m16n8k16<bf16>(left, x, y);
  }
  // Element (lane / 4 + 8 half, column) for each lane.
  static __device__ __forceinline__ float of_column(Block const& r, int half, int column, int lane) {
    int const source = lane / 4 * 4 + column % 8 / 2;
    uint32_t const low = __shfl_sync(0xffffffff, r[half], source), high = __shfl_sync(0xffffffff, r[2 + half], source);
    uint32_t const both = column < 8 ? low : high;
    return column % 2 ? unpack_hi<bf16>(both) : unpack_lo<bf16>(both);
  }

  // The diagonal of X Yᵀ, accumulated: one accumulator for both halves, each with zeros for the other's rows of X.
  using Diagonal = Tile;
  static __device__ __forceinline__ void add_diagonal(Diagonal& r, Block const& x, Block const& y) {
    mma_m16n8k16<bf16>(r, {x[0], 0, x[2], 0}, {y[0], y[2]});
    mma_m16n8k16<bf16>(r, {0, x[1], 0, x[3]}, {y[1], y[3]});
  }
  // Element 8 half + lane / 4, in the lane that holds it: lane % 4 = lane / 8.
  static __device__ __forceinline__ float of_diagonal(Diagonal const& r, int half, int lane) {
    return lane / 4 % 2 ? r[2 * half + 1] : r[2 * half];
  }

  // A block has 16 bytes per lane in memory; `at` is this lane's address.
  static constexpr int kBlock = 32;  // uint4 per block
  static __device__ __forceinline__ int lane_slot(int lane) { return lane; }
  template <Side kSide>
  static __device__ __forceinline__ void load(Block& r, uint4 const* at, bool there = true) {
    uint4 const x = there ? *at : make_uint4(0, 0, 0, 0);
    bool const left = kSide == Side::kLeft;
    r[0] = x.x, r[1] = left ? x.y : x.z, r[2] = left ? x.z : x.y, r[3] = x.w;
  }
  template <Side kSide>
  static __device__ __forceinline__ void store(uint4* at, Block const& r) {
    bool const left = kSide == Side::kLeft;
    *at = make_uint4(r[0], left ? r[1] : r[2], left ? r[2] : r[1], r[3]);
  }
  template <Side kSide>
  static __device__ __forceinline__ void store_transposed(uint4* at, Block const& r, int) {
    Block r_t;
    transpose(r_t, r);
    store<kSide>(at, r_t);
  }

  // Matrices [16, K] in swizzled rows: blocks of their rows, and of their columns, which are transposed.
  template <int K>
  struct Matrix {
    using Rows = ::Rows<K, true>;
    static constexpr int kBytes = kChunk * Rows::kRowBytes;

    static __device__ __forceinline__ void put_rows(unsigned char* matrix, Block const& r, int step, int lane) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        *reinterpret_cast<uint32_t*>(matrix + Rows::offset(lane / 4 + e % 2 * 8, step * 2 + e / 2) + lane % 4 * 4) =
            r[e];
    }
    static __device__ __forceinline__ void put_columns(unsigned char* matrix, Block const& r, int step, int lane) {
      put_rows(matrix, r, step, lane);
    }
    // Loads right blocks from shared memory.
    static __device__ __forceinline__ void rows(Block& r, unsigned char const* matrix, int step, int lane) {
      uint32_t const at = Rows::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
      uint32_t x[4];
      ldmatrix<4>(x, Rows::advance(shared_address(matrix) + at, 2 * step));
      r[0] = x[0], r[2] = x[1], r[1] = x[2], r[3] = x[3];
    }
    static __device__ __forceinline__ void columns(Block& r, unsigned char const* matrix, int step, int lane) {
      uint32_t x[4];
      ldmatrix_trans<4>(x, Rows::advance(shared_address(matrix) + Rows::offset(lane % 16, lane / 16), 2 * step));
      r[0] = x[0], r[2] = x[1], r[1] = x[2], r[3] = x[3];
    }
  };

  // The inverses of a chunk's triangle, which lanes compute row by row.
  struct Inverses {
    using Square = ::Rows<kChunk, false>;
    static constexpr int kSquare = kChunk * Square::kRowBytes, kBytes = 2 * kSquare;

    // Stores a row of T, or of E.
    static __device__ __forceinline__ void put(unsigned char* s_inverses, unsigned char*, bool errors, int row,
                                               float const (&x)[kChunk]) {
      unsigned char* s_row = s_inverses + errors * kSquare + row * Square::kRowBytes;
#pragma unroll
      for (int j = 0; j < kChunk; j += 8)
        *reinterpret_cast<uint4*>(s_row + 2 * j) =
            make_uint4(::pack<bf16>(x[j], x[j + 1]), ::pack<bf16>(x[j + 2], x[j + 3]), ::pack<bf16>(x[j + 4], x[j + 5]),
                       ::pack<bf16>(x[j + 6], x[j + 7]));
    }
    static __device__ __forceinline__ void transposed(Block& r, unsigned char const* s_inverses, int lane) {
      ldmatrix_trans<4>(r, shared_address(s_inverses) + Square::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2));
    }
    // Stores E after all rows are complete.
    static __device__ __forceinline__ void store_errors(unsigned char* block, unsigned char const* s_inverses,
                                                        int lane) {
      Block r;
      ldmatrix<4>(r, shared_address(s_inverses) + kSquare + Square::offset(lane % 16, lane / 16));
      store<Side::kLeft>(reinterpret_cast<uint4*>(block) + lane, r);
    }
  };

  // Loads sixteen tokens of sixteen values of do from global memory; `rows` as in load_tile.
  template <class T>
  static __device__ __forceinline__ void load_values(Block& r, T const* rows, int64_t stride, int tokens, int lane) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int const token = lane / 4 + e % 2 * 8;
      uint32_t const* at = reinterpret_cast<uint32_t const*>(rows + token * stride + e / 2 * 8 + lane % 4 * 2);
      r[e] = bf16_pair<T>(token < tokens ? *at : 0);
    }
  }

  // v and do: rows of BV values in shared memory, read transposed: [values, tokens].
  template <class T, int BV>
  struct Values {
    static_assert(sizeof(T) == 2, "bf16 operands are of 16-bit tensors");
    using Rows = ::Rows<BV, true>;
    using Registers = uint32_t[4];  // registers of 16 values
    static constexpr int kRowBytes = Rows::kRowBytes;

    static __device__ __forceinline__ uint32_t offset(int row, int chunk) { return Rows::offset(row, chunk); }
    static __device__ __forceinline__ void load(Registers& r, unsigned char const* values, int first, int lane) {
      uint32_t const at = Rows::offset(lane / 16 * 8 + lane % 8, first / 8 + lane / 8 % 2);
      ldmatrix_trans<4>(r, shared_address(values) + at);
    }
    static __device__ __forceinline__ void unpack(Tile& left, Tile& right, Registers const& r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        left[2 * half] = unpack_lo<T>(r[half]), left[2 * half + 1] = unpack_hi<T>(r[half]);
        right[2 * half] = unpack_lo<T>(r[2 + half]), right[2 * half + 1] = unpack_hi<T>(r[2 + half]);
      }
    }
    static __device__ __forceinline__ void pack(Block& r_block, Registers const& r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) r_block[e] = bf16_pair<T>(r[e]);
    }
    // Stores rows to global memory, of which `tokens` exist; `g_rows`: the first of the 16 values.
    static __device__ __forceinline__ void store(T* g_rows, int64_t stride, Tile const& left, Tile const& right,
                                                 int tokens, int lane) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        Tile const& r = n ? right : left;
        uint32_t const low = movmatrix_trans(::pack<T>(r[0], r[1])), high = movmatrix_trans(::pack<T>(r[2], r[3]));
        int const token = n * 8 + lane / 4;
        T* g_pair = g_rows + token * stride + lane % 4 * 2;
        if (token < tokens) {
          *reinterpret_cast<uint32_t*>(g_pair) = low;
          *reinterpret_cast<uint32_t*>(g_pair + 8) = high;
        }
      }
    }
  };
};
