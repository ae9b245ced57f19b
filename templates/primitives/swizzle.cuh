// Operands in shared memory. The XOR swizzles that TMA applies and wgmma and tcgen05 undo: 16-byte chunks are permuted
// within a row, depending on the row.
#pragma once
#include "types.cuh"

enum class Swizzle { kNone, k32B, k64B, k128B };

// Bytes of a row that one swizzle spans.
constexpr __host__ __device__ int swizzle_span(Swizzle mode) { return 16 << int(mode); }

// Swizzled position of byte `offset` of a tile, which starts at a multiple of 8 spans (and of 128 bytes).
constexpr __host__ __device__ uint32_t swizzled(uint32_t offset, Swizzle mode) {
  return offset ^ ((offset >> 7 & ((1u << int(mode)) - 1)) << 4);
}

enum class Major { kK, kMN };  // which dim of an operand is contiguous
