// Coordinates of a scan warp's part of a head of a sequence.
#pragma once
#include "kda_backward/chunked/block.cuh"
#include "kda_backward/sequences.cuh"

// The warp's kRows columns of the state, of the block's kRows kWarps; kSpan chunks share a stored state.
template <class Scan, class Index, int K, int V, int kRows, int kWarps, int kSpan>
struct Columns {
  static constexpr int kBlockColumns = kRows * kWarps;
  int lane, first;  // column of the block
  Sequence tokens;
  int chunks;
  int64_t chunk;  // index of the sequence's first chunk among those of all heads
  int64_t span;   // index of the sequence's first span of kSpan chunks
  int64_t state;  // offset of the warp's columns in the stored states of all sequences
  __device__ __forceinline__ Columns(Index const* cu_seqlens, int seq_len, int value_heads)
      : lane(threadIdx.x % 32),
        first(threadIdx.x / 32 * kRows),
        tokens(sequence(cu_seqlens, blockIdx.z, seq_len)),
        chunks((tokens.tokens + kChunk - 1) / kChunk),
        chunk((int64_t(tokens.batch) * value_heads + blockIdx.y) * pieces<kChunk>(cu_seqlens, gridDim.z, seq_len) +
              first_piece<kChunk>(cu_seqlens, blockIdx.z)),
        span((int64_t(tokens.batch) * value_heads + blockIdx.y) *
                 pieces<kSpan * kChunk>(cu_seqlens, gridDim.z, seq_len) +
             first_piece<kSpan * kChunk>(cu_seqlens, blockIdx.z)),
        state((int64_t(blockIdx.z) * value_heads + blockIdx.y) * K * V +
              (blockIdx.x * kBlockColumns + first) * Scan::kVStep) {}
  // This lane's address in entry `index` of a tensor with `size` uint4 per entry.
  template <class Operands>
  __device__ __forceinline__ uint4* blocks(typename Operands::Element* tensor, int64_t index, int size) const {
    return reinterpret_cast<uint4*>(tensor) + index * size +
           (blockIdx.x * kBlockColumns + first) / 16 * Operands::kBlock + Operands::lane_slot(lane);
  }
};
