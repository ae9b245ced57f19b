// Sums over all values, from which the gradients of a chunk are computed: for 16 kPairs channels per warp.
#pragma once
#include "kda_backward/chunked/block.cuh"

using Square = Tile[2];  // [tokens, tokens]

// Element (row, row) of a square, row = lane / 4 + 8 half, in that one of the row's four lanes that holds it.
__device__ __forceinline__ float of_diagonal(Square const& square, int half, int lane) {
  return lane / 4 % 2 ? square[half][2 * half + 1] : square[half][2 * half];
}

// Rows are tokens, except for `decay`, whose rows are channels.
template <class Operands, int kPairs>
struct Sums {
  Tile q[2 * kPairs];                            // do Sᵀ
  Tile k[2 * kPairs];                            // y Sᵀ
  Tile rest[2 * kPairs];                         // e dSᵀ
  typename Operands::Diagonal decay[kPairs];     // diagonal of S dSᵀ
  Square queries;                                // do eᵀ
  Square keys;                                   // y eᵀ
};
