// Merges the partial results of shares of a sequence's keys.
#pragma once
#include "flash_attention/split_keys/split_keys.cuh"
#include "paged_attention/queries.cuh"

// Row indices of the parts of a row: the first, and the distance to the next.
struct PartRows {
  int64_t first, apart;
};

// PartRows if shares are of row tiles of BM rows, in which `packed` heads share a query, with the last tile of a
// sequence first: the rows of each share start at index · BM, with the given distance between such heads.
template <int BM>
struct RowTileParts {
  RowTiles<BM> tiles;  // row tiles of `packed` heads
  int heads, packed;

  __device__ __forceinline__ PartRows operator()(int n, int first, int parts, int query, int head) const {
    int const row = query * packed + head % packed;
    int64_t const part = first + (tiles.of(n) - 1 - row / BM) * parts, apart = int64_t(heads / packed) * BM;
    return {part * apart + head / packed * BM + row % BM, apart};
  }
};

// Merges 4 elements of a row of O from the parts that shares of its sequence wrote. `shares`: for each sequence, the
// first share and the number of parts per row; where(n, first, parts, query, head) returns the PartRows of a row of
// sequence n.
template <int kThreads, class T, int D, class Where>
__device__ __forceinline__ void merge_shares(Results<T, D> const& results, int const* shares, int const* cu_seqlens_q,
                                             int sequences, int heads, int seq_q, int longest, Where const& where) {
  int64_t const index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  int const item = index / (D / 4), column = index % (D / 4) * 4;
  if (item >= results.items) return;
  int const row = item % seq_q, head = item / seq_q % heads, b = item / seq_q / heads;
  int const n = cu_seqlens_q ? sequence_of(cu_seqlens_q, sequences + 1, row) : b;
  Queries const queries = queries_of(cu_seqlens_q, n, seq_q);
  int const query = row - queries.first;
  if (cu_seqlens_q && (query < 0 || query >= min(queries.count, longest))) return;
  int2 const of_sequence = reinterpret_cast<int2 const*>(shares)[n];
  if (of_sequence.y == 1) return;  // the row is already stored completely
  PartRows const parts = where(n, of_sequence.x, of_sequence.y, query, head);
  Part part;
#pragma unroll 8
  for (int i = 0; i < of_sequence.y; ++i) results.add_part(part, parts.first + i * parts.apart, column);
  results.store(part, b, row, head, item, column);
}
