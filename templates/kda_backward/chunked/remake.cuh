// The scans store one state and one gradient per span of chunks. Those of its other chunks are recomputed in shared
// memory: for the channels of a slab, and some values at a time, which are split over the warps of the slab.
#pragma once
#include "kda_backward/chunked/gradients.cuh"

// Results of the scans for a span of one head, in the order of operands; all pointers are this lane's, except d_o.
template <class T>
struct Scanned {
  uint4 const *states, *gradients;  // [slab's K / 16, V / 16] blocks: before the span, and of the state after it
  uint4 const *errors, *y;          // [chunks, V / 16] blocks
  View<T const> d_o;                // rows of do from the span's first token on
  int tokens;                       // number of tokens from there to the end of the sequence
};

// Accumulators of 16 tokens and 16 values; [tokens, values].
template <class Operands>
struct TokenValues {
  typename Operands::Block errors, y, d_o;
};

// kPairs: pairs of 8 channels of the slab; kValueBlocks: blocks of 16 values at a time.
template <int V, class Operands, int kSpan, int kPairs, int kValueBlocks>
struct Remake {
  using Block = typename Operands::Block;
  static constexpr int kBlocks = kValueBlocks, kWarps = kSpan;  // warps per slab: one per chunk
  static constexpr int kSteps = V / 16, kBlock = Operands::kBlock, kBlockBytes = 16 * kBlock;
  static_assert(kSteps % kBlocks == 0, "values come in whole pieces");
  // A task is a state or its gradient, for some of the pairs and some of the blocks: there are as many tasks as warps.
  static constexpr int parts(int of, int most) { return of % 4 == 0 && most >= 4 ? 4 : of % 2 == 0 && most >= 2 ? 2 : 1; }
  static constexpr int kPairParts = parts(kPairs, kSpan / 2), kTaskPairs = kPairs / kPairParts;
  static constexpr int kBlockParts = parts(kBlocks, kSpan / 2 / kPairParts), kTaskBlocks = kBlocks / kBlockParts;
  static constexpr int kTasks = 2 * kPairParts * kBlockParts, kWarpTasks = (kTasks + kSpan - 1) / kSpan;

  // Operands of a chunk: the decay of the channels, and three matrices [channels, tokens].
  enum Matrix { kUpdate, kKey, kQuery };  // beta k e^(G_last - G), -beta k e^G, scale q e^G
  static constexpr int kDecayBytes = 64 * kPairs;
  static constexpr int kChunkBytes = kDecayBytes + (kSpan > 1 ? 3 * kPairs * kBlockBytes : 0);
  // Values of a chunk, transposed.
  enum Tensor { kErrors, kY, kDo };
  // Byte offsets in the slab's shared memory.
  static constexpr int kStateBytes = kSpan * kPairs * kBlocks * kBlockBytes;
  static constexpr int kStates = 0;  // states before each chunk
  static constexpr int kGradients = kStateBytes;  // gradients of the states after each chunk
  static constexpr int kOperands = 2 * kStateBytes;
  static constexpr int kValues = kOperands + kSpan * kChunkBytes;
  static constexpr int kBytes = kValues + (kSpan > 1 ? 3 * kSpan * kBlocks * kBlockBytes : 0);

  unsigned char* smem;
  int lane, warp;  // lane; warp of the slab's kSpan warps, which is also the chunk that it sums

  __device__ __forceinline__ uint4* block(int offset, int index) const {
    return reinterpret_cast<uint4*>(smem + offset) + index * kBlock + Operands::lane_slot(lane);
  }
  __device__ __forceinline__ uint4* matrix(int chunk, Matrix which, int pair) const {
    return block(kOperands + chunk * kChunkBytes + kDecayBytes, which * kPairs + pair);
  }
  // Decay of the channels of a pair that are a lane's rows, of 16 adjacent ones.
  __device__ __forceinline__ float* decay(int chunk, int pair) const {
    return reinterpret_cast<float*>(smem + kOperands + chunk * kChunkBytes) + 16 * pair;
  }
  __device__ __forceinline__ uint4* value(int chunk, Tensor which, int step) const {
    return block(kValues, (chunk * 3 + which) * kBlocks + step);
  }
  // Blocks of the current values.
  __device__ __forceinline__ uint4* state(int chunk, int pair, int step) const {
    return block(kStates, (chunk * kPairs + pair) * kBlocks + step);
  }
  __device__ __forceinline__ uint4* gradient(int chunk, int pair, int step) const {
    return block(kGradients, (chunk * kPairs + pair) * kBlocks + step);
  }

  // While no values are summed, the space of this warp's states and gradients is used for its columns.
  using Columns = TokenColumns<kPairs, kGradients>;
  __device__ __forceinline__ Columns columns() const { return {smem + warp * (kStateBytes / kSpan), lane}; }

  // Stores the operands of this warp's chunk. If none of its tokens exist, they have no effect.
  template <class Gradients>
  __device__ __forceinline__ void store_operands(Gradients const& gradients, typename Gradients::Inputs const& from,
                                                 RowPair const& lengths, Betas const& beta) const {
    if constexpr (kSpan > 1) {
      Channels ahead[2][2];
      int at = lane;
      if (Operands::kSplit) forget(at);  // row addresses must not be kept in registers
      auto const fetch = [&](Channels(&x)[2], int pair) {
        gradients.fetch(x[0], from, 2 * pair, at);
        gradients.fetch(x[1], from, 2 * pair + 1, at);
      };
      fetch(ahead[0], 0);
      gradients.columns.put_exponents(from.g, from.gate, gradients.tokens);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        Tile update[2], key[2], query[2];
        if (pair + 1 < kPairs) fetch(ahead[(pair + 1) % 2], pair + 1);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          Channels& x = ahead[pair % 2][t];
          gradients.complete(x, 2 * pair + t, lengths);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float const in = exp2_approx(x.gate[e]), k = beta.rows[e / 2] * x.k[e];
            update[t][e] = k * exp2_approx((e % 2 ? x.total.y : x.total.x) - x.gate[e]);
            key[t][e] = -k * in;
            query[t][e] = gradients.scale * x.q[e] * in;
          }
          if (lane < 4) {
            float* s_decay = decay(warp, pair) + 4 * lane + t;
            s_decay[0] = exp2_approx(x.total.x), s_decay[2] = exp2_approx(x.total.y);
          }
        }
        store(kUpdate, pair, update);
        store(kKey, pair, key);
        store(kQuery, pair, query);
        __syncwarp();  // loads of the next pair must not be hoisted: all at once they would not fit the registers
      }
    }
  }
  __device__ __forceinline__ void store(Matrix which, int pair, Tile const (&x)[2]) const {
    Block r;
    Operands::pack(r, x[0], x[1]);
    Operands::template store_transposed<Side::kLeft>(matrix(warp, which, pair), r, lane);
  }

  // Shares this warp's values with all warps; `step`: index of the block of values.
  __device__ __forceinline__ void share(TokenValues<Operands> const& x, int step) const {
    if constexpr (kSpan > 1) {
      Operands::template store_transposed<Side::kRight>(value(warp, kErrors, step), x.errors, lane);
      Operands::template store_transposed<Side::kRight>(value(warp, kY, step), x.y, lane);
      Operands::template store_transposed<Side::kRight>(value(warp, kDo, step), x.d_o, lane);
    }
  }
  // The warps' tasks for some blocks of values: states forward, gradients in reverse. The first half of the warps
  // computes states, so that warps on the same quarter of an SM have one of each.
  struct Task {
    bool exists, reverse;
    int pair, step;  // the first of kTaskPairs and kTaskBlocks
  };
  __device__ __forceinline__ Task task(int i) const {
    int const index = warp + i * kSpan, part = index % (kTasks / 2);
    return {index < kTasks, index >= kTasks / 2, part % kPairParts * kTaskPairs, part / kPairParts * kTaskBlocks};
  }
  using Stored = Block[kTaskPairs * kTaskBlocks];
  using AllStored = Stored[kWarpTasks];
  // Addresses of the stored results of the scans for the tasks of this warp, for the first values.
  template <class T>
  __device__ __forceinline__ void find_stored(uint4 const* (&r)[kWarpTasks], Scanned<T> const& from) const {
#pragma unroll
    for (int i = 0; i < kWarpTasks; ++i) {
      Task const at = task(i);
      r[i] = (at.reverse ? from.gradients : from.states) + (at.pair * kSteps + at.step) * kBlock;
    }
  }
  // Loads those of the blocks of values from `first` on.
  __device__ __forceinline__ void load_stored(AllStored& r, uint4 const* const (&from)[kWarpTasks], int first) const {
#pragma unroll
    for (int i = 0; i < kWarpTasks; ++i)
#pragma unroll
      for (int j = 0; j < kTaskPairs * kTaskBlocks; ++j)
        Operands::template load<Side::kRight>(
            r[i][j], from[i] + (j / kTaskBlocks * kSteps + first + j % kTaskBlocks) * kBlock, task(i).exists);
  }
  __device__ __forceinline__ void run(AllStored const& stored) const {
#pragma unroll
    for (int i = 0; i < kWarpTasks; ++i) {
      Task const at = task(i);
      if (!at.exists) continue;
      if (at.reverse)
        chain<true>(stored[i], at.pair, at.step);
      else
        chain<false>(stored[i], at.pair, at.step);
    }
  }
  template <bool kReverse>
  __device__ __forceinline__ void chain(Stored const& stored, int pair, int step) const {
    Tile r[kTaskPairs][kTaskBlocks][2];
#pragma unroll
    for (int i = 0; i < kTaskPairs * kTaskBlocks; ++i) {
      Tile(&to)[2] = r[i / kTaskBlocks][i % kTaskBlocks];
      Operands::unpack(to[0], to[1], stored[i]);
    }
#pragma unroll
    for (int i = 0; i < kSpan; ++i) {
      int const chunk = kReverse ? kSpan - 1 - i : i;
#pragma unroll
      for (int j = 0; j < kTaskPairs * kTaskBlocks; ++j) {
        int const p = j / kTaskBlocks, b = j % kTaskBlocks;
        Block x;
        Operands::pack(x, r[p][b][0], r[p][b][1]);
        uint4* s_made = kReverse ? gradient(chunk, pair + p, step + b) : state(chunk, pair + p, step + b);
        Operands::template store<Side::kRight>(s_made, x);
      }
      if (i < kSpan - 1) pass<kReverse>(r, chunk, pair, step);
    }
  }
  // The step of one chunk. Its contribution is summed separately, so that no product waits for the previous chunk.
  template <bool kReverse>
  __device__ __forceinline__ void pass(Tile (&r)[kTaskPairs][kTaskBlocks][2], int chunk, int pair, int step) const {
    constexpr int kProducts = 1 + kReverse;
#pragma unroll
    for (int p = 0; p < kTaskPairs; ++p) {
      Block r_a[kProducts];
      Operands::template load<Side::kLeft>(r_a[0], matrix(chunk, kReverse ? kKey : kUpdate, pair + p));
      if constexpr (kReverse) Operands::template load<Side::kLeft>(r_a[1], matrix(chunk, kQuery, pair + p));
      float2 const decays = reinterpret_cast<float2 const*>(decay(chunk, pair + p))[lane / 4];
#pragma unroll
      for (int b = 0; b < kTaskBlocks; ++b) {
        Tile sum[2] = {};
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
          Block r_b;
          Operands::template load<Side::kRight>(r_b, value(chunk, i ? kDo : kReverse ? kY : kErrors, step + b));
          Operands::multiply(sum[0], sum[1], r_a[i], r_b);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          float& x = r[p][b][e / 4][e % 4];
          x = x * (e / 2 % 2 ? decays.y : decays.x) + sum[e / 4][e % 4];
        }
      }
    }
  }
};
