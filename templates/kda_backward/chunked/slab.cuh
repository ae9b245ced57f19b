// Coordinates of the chunks of a gradients block, and of the chunk whose channels a warp processes, slab by slab.
#pragma once
#include "register.cuh"
#include "kda_backward/sequences.cuh"
#include "kda_backward/tile.cuh"

// The rows of a tensor [B, T, heads, ·] in a chunk, of one head, from one column on.
template <class T>
struct View {
  T* first;
  int64_t stride;
};

// A block has the kSpan chunks that share a stored state, with kWarps warps for each.
template <class Index, int kSpan, int kWarps>
struct Slab {
  int lane, index, slot;  // the warp's first slab of its chunk; its chunk within the span
  int chunks;             // chunks per batch entry and head
  Piece span;
  int first, last;  // first chunk of the span; first chunk of the next sequence, or the end

  __device__ __forceinline__ Slab(Index const* cu_seqlens, int sequences, int seq_len)
      : lane(threadIdx.x % 32),
        index(threadIdx.x / 32 % kWarps),
        slot(threadIdx.x / 32 / kWarps),
        chunks(pieces<kChunk>(cu_seqlens, sequences, seq_len)),
        span(piece<kSpan * kChunk>(cu_seqlens, sequences, seq_len, blockIdx.x)),
        first(first_piece<kChunk>(cu_seqlens, span.sequence) + span.index * kSpan),
        last(cu_seqlens ? first_piece<kChunk>(cu_seqlens, span.sequence + 1) : chunks) {}
  // Number of tokens from the chunk's first to the end of the sequence; 0 or less: the chunk is empty.
  __device__ __forceinline__ int tokens() const { return span.tokens - slot * kChunk; }
  // Empty chunks have memory too.
  __device__ __forceinline__ bool has_memory() const { return first + slot < last; }

  // Positions of packed sequences are loaded from memory. 64-bit values derived from them are recomputed when needed:
  // kept between slabs they would need up to 10 registers.
  __device__ __forceinline__ int first_chunk() const { return again(first); }
  static __device__ __forceinline__ int again(int x) {
    forget(x);
    return x;
  }

  // The index of the span's first chunk among those of all heads, and of the span.
  __device__ __forceinline__ int64_t chunk_index(int head, int heads) const {
    return (int64_t(blockIdx.z) * heads + head) * chunks + first_chunk();
  }
  __device__ __forceinline__ int64_t span_place(int head, int heads) const {
    return (int64_t(blockIdx.z) * heads + head) * gridDim.x + blockIdx.x;
  }
  // Rows of chunk `at` of the span.
  template <class T>
  __device__ __forceinline__ View<T> rows(T* tensor, int64_t batch_stride, int64_t stride, int64_t head_stride,
                                          int head, int column, int at) const {
    int const token = again(int(span.first) + at * kChunk);
    return {tensor + blockIdx.z * batch_stride + token * stride + head * head_stride + column, stride};
  }
};
