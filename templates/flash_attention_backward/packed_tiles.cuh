// Which tile of which packed sequence a block owns.
#pragma once
#include "flash_attention/sequences.cuh"

struct OwnTile {
  int sequence;
  unsigned tile;
};

// Tiles of kRows rows, counted through all sequences: those of sequence n begin at number bounds[n] / kRows + n. That
// leaves each sequence as many as it needs, or one more, of bounds[N] / kRows + N in all.
template <int kRows>
__device__ __forceinline__ OwnTile packed_tile(int const* bounds, int boundaries, int number) {
  int low = 0, high = boundaries - 1;
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    (bounds[middle] / kRows + middle <= number ? low : high) = middle;
  }
  return {low, unsigned(number - (bounds[low] / kRows + low))};
}

// Tiles of BM queries of a sequence, in tensors where a head has `keys` of them.
template <int BM>
struct SequenceWalk {
  int tiles, queries, keys;

  __device__ __forceinline__ int key(int tile) const { return tile * BM; }
  __device__ __forceinline__ int end(int) const { return queries; }
};
