// The tile of a packed sequence that a block owns.
#pragma once
#include "flash_attention/sequences.cuh"

struct OwnTile {
  int sequence;
  unsigned tile;
};

// Tiles of kRows rows, numbered over all sequences: those of sequence n start at number bounds[n] / kRows + n. Each
// sequence then has as many as it needs, or one more, and there are bounds[N] / kRows + N in total.
template <int kRows>
__device__ __forceinline__ OwnTile packed_tile(int const* bounds, int boundaries, int number) {
  int low = 0, high = boundaries - 1;
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    (bounds[middle] / kRows + middle <= number ? low : high) = middle;
  }
  return {low, unsigned(number - (bounds[low] / kRows + low))};
}

// Tiles of BM queries of a sequence, in tensors whose heads have `keys` of them.
template <int BM>
struct SequenceWalk {
  int tiles, queries, keys;

  __device__ __forceinline__ int key(int tile) const { return tile * BM; }
  __device__ __forceinline__ int end(int) const { return queries; }
};
