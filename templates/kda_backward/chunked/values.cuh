// A warp sums, over all values, the quantities that the gradients of a chunk need. Results of the scans for the chunk's
// tokens are read in the order of operands, as are the states recomputed by Remake.
#pragma once
#include "register.cuh"
#include "kda_backward/chunked/remake.cuh"
#include "thread.cuh"

template <class Remake, class T, class Operands, int kPairs>
struct ValueSums {
  using Block = typename Operands::Block;
  using Sums = ::Sums<Operands, kPairs>;
  static constexpr int kSteps = Remake::kSteps, kBlock = Operands::kBlock;

  Remake remake;
  Scanned<T> from;  // results of the scans for the span
  int barrier;      // barrier of the slab's warps

  __device__ __forceinline__ int tokens() const { return from.tokens - remake.warp * kChunk; }

  using Values = TokenValues<Operands>;
  __device__ __forceinline__ void load(Values& r, int step, int lane) const {
    int const chunk = remake.warp;
    bool const there = step < kSteps && tokens() > 0;
    Operands::load_values(r.d_o, from.d_o.first + chunk * kChunk * from.d_o.stride + 16 * step, from.d_o.stride,
                          there ? tokens() : 0, lane);
    int const at = (chunk * kSteps + step) * kBlock;
    Operands::template load<Side::kLeft>(r.errors, from.errors + at, there);
    Operands::template load<Side::kLeft>(r.y, from.y + at, there);
  }
  __device__ __forceinline__ void sync() const {
    if constexpr (Remake::kWarps > 1)
      named_barrier_sync(barrier, 32 * Remake::kWarps);
    else
      __syncwarp();
  }

  // Values are loaded as soon as the registers of the previous ones are free.
  __device__ __forceinline__ void add_up(Sums& r) const {
    constexpr int kBlocks = Remake::kBlocks;
    int lane = remake.lane;
    if (Operands::kSplit) forget(lane);  // row addresses must not be kept in registers
    Values x[kBlocks];
    uint4 const* g_stored[Remake::kWarpTasks];
    remake.find_stored(g_stored, from);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) load(x[block], block, lane);
    int first = 0;
    forget(first);  // few steps would otherwise be unrolled, and spill
#pragma unroll 1
    for (; first < kSteps; first += kBlocks) {
      typename Remake::AllStored stored;
      remake.load_stored(stored, g_stored, first);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) remake.share(x[block], block);
      sync();  // all have stored their values and operands in shared memory, and finished with the states
      remake.run(stored);
      sync();
      if (tokens() <= 0) continue;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        add(r, x[block], block);
        load(x[block], first + kBlocks + block, lane);
      }
    }
  }
  __device__ __forceinline__ void add(Sums& r, Values const& x, int block) const {
    Operands::multiply(r.queries[0], r.queries[1], x.d_o, x.errors);
    Operands::multiply(r.keys[0], r.keys[1], x.y, x.errors);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Block r_s, r_d;
      Operands::template load<Side::kRight>(r_s, remake.state(remake.warp, pair, block));
      Operands::template load<Side::kRight>(r_d, remake.gradient(remake.warp, pair, block));
      Operands::multiply(r.q[2 * pair], r.q[2 * pair + 1], x.d_o, r_s);
      Operands::multiply(r.k[2 * pair], r.k[2 * pair + 1], x.y, r_s);
      Operands::multiply(r.rest[2 * pair], r.rest[2 * pair + 1], x.errors, r_d);
      Operands::add_diagonal(r.decay[pair], r_s, r_d);
    }
  }
};
