// Splitting of a sequence into segments, each of which maps its initial state S to A S + B.
#pragma once
#include "types.cuh"

// Segments of `each` chunks of C tokens. With few chunks, fewer segments than kSegments; without tokens one segment,
// which passes its state on.
template <int C, int kSegments>
struct Cut {
  int seq_len, each, segments;

  __device__ __forceinline__ explicit Cut(int seq_len) : seq_len(seq_len) {
    int const chunks = (seq_len + C - 1) / C;
    each = max(1, (chunks + kSegments - 1) / kSegments);
    segments = max(1, (chunks + each - 1) / each);
  }
  __device__ __forceinline__ int64_t first_token(int segment) const { return int64_t(segment) * each * C; }
  __device__ __forceinline__ int tokens(int segment) const {
    return min(seq_len - int(first_token(segment)), each * C);
  }
};

// The identity; this warp owns the columns from `column` on. Step is a Scan with K channels.
template <class Step, int K>
__device__ __forceinline__ void set_identity(typename Step::State& r_s, int column, int lane) {
#pragma unroll
  for (int i = 0; i < Step::kTiles * K / 2; ++i) {
    int const m = i / (K / 2), n = i / 4 % (K / 8), e = i % 4;
    int const channel = Step::state_offset(m, n, e, lane, 1, 0), value = Step::state_offset(m, n, e, lane, 0, 1);
    r_s[m][n][e] = channel == column + value ? 1 : 0;
  }
}
