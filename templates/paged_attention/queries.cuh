// The rows of Q that are the queries of a sequence: a batch entry, or a range of packed rows.
#pragma once
#include "flash_attention/rows.cuh"
#include "flash_attention/sequences.cuh"
#include "paged_attention/shares.cuh"

struct Queries {
  int batch, first, count;

  // Start of the sequence's rows in a tensor.
  template <class T>
  __device__ __forceinline__ T* of(T* data, int64_t batch_stride, int64_t row_stride) const {
    return data + batch * batch_stride + first * row_stride;
  }
};

// Queries of sequence n. If `cu_seqlens_q` is null, each batch entry has seq_q queries.
__device__ __forceinline__ Queries queries_of(int const* cu_seqlens_q, int n, int seq_q) {
  Queries found{n, 0, seq_q};
  if (!cu_seqlens_q) return found;
  found.batch = 0;
  packed_rows_of(found.first, found.count, cu_seqlens_q, n, seq_q);
  return found;
}

// Tiles of up to BM rows; the rows of a sequence are its queries, or the first `longest` of them, times `group` heads.
template <int BM>
struct RowTiles {
  static constexpr bool kOne = false;

  int const* cu_seqlens_q;
  int seq_q, longest, group;

  __device__ __forceinline__ int most() const { return ceil_div(longest * group, BM); }
  __device__ __forceinline__ int of(int n) const {
    return ceil_div(min(queries_of(cu_seqlens_q, n, seq_q).count, longest) * group, BM);
  }
};

// The tile of block `block` among those of all sequences, with all of its keys. Called by all lanes of a warp.
template <int BM>
__device__ __forceinline__ Share whole_tile(int block, int sequences, RowTiles<BM> const& tiles) {
  constexpr int kAll = 1 << 30;
  if (!tiles.cu_seqlens_q) {
    int const each = tiles.of(0), n = block / each;
    return {n < sequences ? n : -1, 0, 1, block, 0, kAll, block - n * each, n * each};
  }
  int before = 0;  // tiles of the previous sequences
#pragma unroll 1
  for (int first = 0; first < sequences; first += 32) {
    int const n = first + threadIdx.x % 32, mine = n < sequences ? tiles.of(n) : 0;
    int const past = before + sum_up_to_lane(mine);
    unsigned const later = __ballot_sync(0xffffffff, past > block);
    if (later) {
      int const found = __ffs(later) - 1, own = __shfl_sync(0xffffffff, past - mine, found);
      return {first + found, 0, 1, block, 0, kAll, block - own, own};
    }
    before = __shfl_sync(0xffffffff, past, 31);
  }
  return {-1, 0, 0, block, 0, 0, 0, 0};
}
