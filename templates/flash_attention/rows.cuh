// Tiles of rows of D 16-bit elements in shared memory, or of D / 2 32-bit elements, copied and read in chunks of 16
// bytes.
#pragma once
#include "cp_async.cuh"
#include "types.cuh"

constexpr __host__ __device__ int greatest_common_divisor(int a, int b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}
constexpr __host__ __device__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

// An ldmatrix phase reads one chunk of 8 consecutive rows, without bank conflicts if the chunks have 8 different
// positions modulo 128 bytes. kSwizzle achieves that without padding: chunk k of row r is at position k ^ (r / (8 / g)
// % g), where g = gcd(D / 8, 8). Otherwise rows are padded to an odd number of chunks. A tile starts at a multiple of
// 128 bytes.
template <int D, bool kSwizzle>
struct Rows {
  static_assert(D % 8 == 0, "a row is a whole number of 16-byte chunks");
  static constexpr int kDim = D;
  static constexpr int kChunks = D / 8;
  static constexpr int kGroup = kSwizzle ? greatest_common_divisor(kChunks, 8) : 1;  // chunks that are permuted
  static constexpr int kRowBytes = 16 * (kSwizzle ? kChunks : kChunks | 1);

  // Byte offset of a chunk in the tile.
  static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t chunk) {
    return row * kRowBytes + 16 * (chunk ^ row / (8 / kGroup) % kGroup);
  }
  // The address of chunk c + k, from that of chunk c in the same row. c and k have no bit in common, so the swizzle is
  // an XOR with a constant, or an offset that the instruction adds.
  static __device__ __forceinline__ uint32_t advance(uint32_t address, int k) {
    return (address ^ k % kGroup * 16) + k / kGroup * kGroup * 16;
  }
};

// A thread's share of a tile of kRows rows that kThreads threads copy: one chunk of every kRowsPerPass-th row.
template <class Layout, int kRows, int kThreads>
struct CopyShare {
  static constexpr int kWidest = kThreads / Layout::kChunks;  // rows that have a thread for each chunk
  // The swizzle has a period of 8 rows: with a multiple of 8, a thread's chunks are a constant distance apart.
  static constexpr int kRowsPerPass = Layout::kGroup > 1 && kWidest >= 8 ? kWidest / 8 * 8 : kWidest;
  static constexpr bool kRegular = Layout::kGroup == 1 || kRowsPerPass % 8 == 0;
  // Otherwise a power of two has no bit in common with the rows of a pass: the swizzle is an XOR with a constant.
  static constexpr bool kConstantXor = (kRowsPerPass & (kRowsPerPass - 1)) == 0;
  static_assert(kRowsPerPass > 0, "a pass copies at least one row");

  int row0, chunk;
  uint32_t offset;  // offset of the first chunk in the tile

  __device__ __forceinline__ explicit CopyShare(int thread)
      : row0(thread / Layout::kChunks), chunk(thread % Layout::kChunks), offset(Layout::offset(row0, chunk)) {}
  // Start of the thread's share in rows that are `stride` elements apart.
  template <class T>
  __device__ __forceinline__ T const* first(T const* g_rows, int64_t stride) const {
    return g_rows + row0 * stride + chunk * int(16 / sizeof(T));
  }
  // Starts copying from the address returned by `first`; the first `valid` rows of the tile exist, the others become
  // zeros.
  template <class T>
  __device__ __forceinline__ void load(uint32_t s_tile, T const* g_first, int64_t stride, int valid) const {
    if (row0 >= kRowsPerPass) return;
    int const left = valid - row0;
#pragma unroll
    for (int pass = 0; pass < ceil_div(kRows, kRowsPerPass); ++pass) {
      int const row = pass * kRowsPerPass;
      if (kRows % kRowsPerPass == 0 || row + row0 < kRows) cp_async<16>(s_tile + at(row), g_first, row < left ? 16 : 0);
      g_first += kRowsPerPass * stride;
    }
  }
  // The thread's chunk in the pass that starts at `row`.
  __device__ __forceinline__ uint32_t at(int row) const {
    if (kRegular) return offset + row * Layout::kRowBytes;
    if (!kConstantXor) return Layout::offset(row0 + row, chunk);
    return Layout::advance(offset, row / (8 / Layout::kGroup) % Layout::kGroup) + row * Layout::kRowBytes;
  }
};

// Starts copying kRows rows, `stride` elements apart in global memory; the first `valid` of them exist, the others
// become zeros. All kThreads threads of the block call it, and commit.
template <class Layout, int kRows, int kThreads, class T>
__device__ __forceinline__ void load_rows(uint32_t s_tile, T const* g_rows, int64_t stride, int valid) {
  CopyShare<Layout, kRows, kThreads> const share(threadIdx.x);
  share.load(s_tile, share.first(g_rows, stride), stride, valid);
}
