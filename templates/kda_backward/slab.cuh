// Where a warp of gradients finds its chunk, and in it the channels that it takes: its slab.
#pragma once
#include "sequences.cuh"
#include "tile.cuh"

// The rows of a tensor [B, T, heads, ·] in a chunk, of one head, from one column on.
template <class T>
struct View {
  T* first;
  int64_t stride;
};

// What the scans leave for one chunk of one head, in the order of operands; all pointers are this lane's.
struct Scanned {
  uint4 const *states, *gradients;  // [K / 16, V / 16] blocks: before the chunk, and of the state after it
  uint4 const *r, *y;               // [V / 16] blocks
};

// kChunks of a block, kWarps of a chunk; kSpan chunks share a stored state.
template <class Index, int kChunks, int kWarps, int kSpan>
struct Slab {
  int lane, index, slot;  // the warp's first slab of its chunk; the chunk of its block
  int chunk, chunks;      // of the chunks of a batch's head
  Piece tokens;
  int span, spans;  // of the spans of a batch's head

  __device__ __forceinline__ Slab(Index const* cu_seqlens, int sequences, int seq_len)
      : lane(threadIdx.x % 32),
        index(threadIdx.x / 32 % kWarps),
        slot(threadIdx.x / 32 / kWarps),
        chunk(blockIdx.x * kChunks + slot),
        chunks(pieces<kChunk>(cu_seqlens, sequences, seq_len)),
        tokens(piece<kChunk>(cu_seqlens, sequences, seq_len, chunk)),
        span(first_piece<kSpan * kChunk>(cu_seqlens, tokens.sequence) + tokens.index / kSpan),
        spans(pieces<kSpan * kChunk>(cu_seqlens, sequences, seq_len)) {}
  __device__ __forceinline__ bool empty() const { return chunk >= chunks || tokens.tokens <= 0; }

  // The chunk's place among those of all heads, and its span's.
  __device__ __forceinline__ int64_t place(int head, int heads) const {
    return (int64_t(blockIdx.z) * heads + head) * chunks + chunk;
  }
  __device__ __forceinline__ int64_t span_place(int head, int heads) const {
    return (int64_t(blockIdx.z) * heads + head) * spans + span;
  }
  template <class T>
  __device__ __forceinline__ View<T> rows(T* tensor, int64_t batch_stride, int64_t stride, int64_t head_stride,
                                          int head, int column) const {
    return {tensor + blockIdx.z * batch_stride + tokens.first * stride + head * head_stride + column, stride};
  }
};
