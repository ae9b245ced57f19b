// Sequences of equal length in a batch, or of any lengths packed into a batch of 1.
#pragma once
#include "kda/token.cuh"

// Memory for pieces of kTokens tokens: packed sequence n has its own from first_piece on, which never overlap those of
// previous sequences, whatever their lengths; `count` sequences have `pieces` pieces per head in total, some of which
// are empty.
template <int kTokens, class Index>
__device__ __forceinline__ int first_piece(Index const* cu_seqlens, int n) {
  return cu_seqlens ? int(cu_seqlens[n] / kTokens) + n : 0;
}
template <int kTokens, class Index>
__device__ __forceinline__ int pieces(Index const* cu_seqlens, int count, int seq_len) {
  return cu_seqlens ? seq_len / kTokens + count : (seq_len + kTokens - 1) / kTokens;
}

// A piece, from its index in memory.
struct Piece {
  int64_t first;      // token of the batch
  int tokens;         // tokens from there to the end of the sequence; 0 or less: the piece is empty
  int index;          // index among the pieces of its sequence
  int sequence;       // index of the packed sequence, otherwise 0
};
template <int kTokens, class Index>
__device__ __forceinline__ Piece piece(Index const* cu_seqlens, int count, int seq_len, int piece_index) {
  if (!cu_seqlens) return {int64_t(piece_index) * kTokens, seq_len - piece_index * kTokens, piece_index, 0};
  int low = 0, high = count;  // first_piece(low) <= place < first_piece(high)
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    (first_piece<kTokens>(cu_seqlens, middle) <= piece_index ? low : high) = middle;
  }
  int const index = piece_index - first_piece<kTokens>(cu_seqlens, low), start = index * kTokens;
  Sequence const at = sequence(cu_seqlens, low, seq_len);
  return {at.first + start, at.tokens - start, index, low};
}
