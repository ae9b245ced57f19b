// The rows of Q, and of K and V, of a sequence: a batch entry, or one of the packed sequences.
#pragma once

struct Sequence {
  int batch;
  int first_query, queries;
  int first_key, keys;
};

// Rows from bounds[n] to bounds[n + 1], clamped to `rows`.
__device__ __forceinline__ void packed_rows_of(int& first, int& count, int const* bounds, int n, int rows) {
  first = min(max(bounds[n], 0), rows);
  count = max(min(bounds[n + 1], rows) - first, 0);
}

// Sequence n. If `cu_seqlens_q` and `cu_seqlens_k` are null, each batch entry has seq_q queries and seq_k keys.
__device__ __forceinline__ Sequence sequence(int const* cu_seqlens_q, int const* cu_seqlens_k, int n, int seq_q,
                                             int seq_k) {
  Sequence found{n, 0, seq_q, 0, seq_k};
  if (!cu_seqlens_q) return found;
  found.batch = 0;
  packed_rows_of(found.first_query, found.queries, cu_seqlens_q, n, seq_q);
  packed_rows_of(found.first_key, found.keys, cu_seqlens_k, n, seq_k);
  return found;
}

// The last packed sequence that starts at or before `row`: the sequence of the row, if any.
__device__ __forceinline__ int sequence_of(int const* cu_seqlens_q, int boundaries, int row) {
  int low = 0, high = boundaries - 1;
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    (cu_seqlens_q[middle] <= row ? low : high) = middle;
  }
  return low;
}
