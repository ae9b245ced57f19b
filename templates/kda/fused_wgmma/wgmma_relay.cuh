// Blocks in which producer warps prepare the chunks of a run, and consumer warpgroups carry 64 columns of a state each
// through them.
#pragma once
#include "bulk.cuh"
#include "cluster.cuh"
#include "cp_async.cuh"
#include "fence.cuh"
#include "kda/fused_wgmma/wgmma_scan.cuh"
#include "mbarrier.cuh"
#include "opaque.cuh"
#include "thread.cuh"

// Like ClusterRelay: chunks of C tokens pass through a ring of kStages stages. If kBlocks blocks form a cluster, each
// has the ring, and the block that prepares a chunk copies it into the same stage of the others. Each of a block's
// kProducers warps prepares every kBlocks · kProducers-th chunk. kAhead: meanwhile its next chunk is in flight, for
// which only few warps have enough registers; with more warps, others work while one waits.
template <class T, int C, int kColumns, class Prep, class Step, int kBlocks, int kStages, int kProducers, bool kAhead>
struct WgmmaRelay {
  using Chunk = typename Prep::Chunk;
  using Registers = typename Prep::Registers;
  using State = typename Step::State;
  using Image = typename Step::Image;
  static constexpr int kCarriers = kColumns / 16;  // warps that carry the state
  static constexpr int kCarryThreads = 32 * kCarriers;
  static constexpr int kThreads = kCarryThreads + 32 * kProducers;
  static constexpr int kValueStages = 4;  // chunks whose values a consumer holds or has in flight
  static constexpr int kPrepBytes = (Prep::kBytes + 127) / 128 * 128;
  static constexpr int kStageBytes = (Image::kBytes + 1023) / 1024 * 1024;  // wgmma reads from multiples of 1024 bytes
  static constexpr int kPrep = kStages * kStageBytes;  // start of the producers' shared memory
  static constexpr int kValues = kPrep + kProducers * kPrepBytes;  // one ring per consumer warp
  static constexpr int kBarriers = kValues + kCarriers * kValueStages * Step::kValueBytes;
  static constexpr int kBytes = kBarriers + 16 * kStages;
  static_assert(Prep::kThreads == 32, "a warp prepares a chunk");
  static_assert(kStages % (kBlocks * kProducers) == 0, "a stage is always filled by the same producer");
  static_assert(kColumns % 64 == 0 && kProducers % 4 == 0, "registers move between whole warpgroups");

  unsigned char* smem;
  int tokens;  // tokens of the run
  int rank;    // rank of this block

  // The warp's index comes from a shuffle, which makes it uniform: from threadIdx alone, ptxas keeps the stage and its
  // descriptors in each lane, and moves them to uniform registers before every wgmma.
  static __device__ __forceinline__ bool produces() {
    return __shfl_sync(0xffffffff, int(threadIdx.x) / 32, 0) >= kCarriers;
  }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ int chunks() const { return (tokens + C - 1) / C; }
  // Signals that a stage contains a chunk: an arrival of the warp that prepared it, in any block, and the bytes that it
  // copies.
  __device__ __forceinline__ uint32_t full(int stage) const { return shared_address(smem) + kBarriers + 8 * stage; }
  // Signals that a stage may be refilled, in the block that prepares its chunks: an arrival of every block's consumers.
  __device__ __forceinline__ uint32_t empty(int stage) const { return full(stage) + 8 * kStages; }

  // Initializes the barriers, before anything else; called by all threads of all blocks.
  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(full(stage), 1);
        mbarrier_init(empty(stage), kBlocks * kCarriers);
      }
      fence_mbarrier_init();
    }
    if constexpr (kBlocks > 1)
      cluster_sync();
    else
      __syncthreads();
  }
  // After this, no block arrives here, or copies to or from here.
  static __device__ __forceinline__ void finish() {
    if constexpr (kBlocks > 1) {
      __syncwarp();
      cluster_sync();
    }
  }

  // The complete work of a producer. `run`: the rows of all chunks.
  template <class Gate>
  __device__ __forceinline__ void produce(Chunk const& run, float scale, Gate const& gate) const {
    constexpr int kTurns = kBlocks * kProducers;
    int const producer = (threadIdx.x - kCarryThreads) / 32, first = rank + kBlocks * producer;
    Prep prep(smem + kPrep + producer * kPrepBytes, threadIdx.x % 32, scale, gate, run, smem);
    Registers r;
    Chunk next = run.from(first * C);
    if constexpr (kAhead) prep.load(r, next);
    int stage = first;
    int parity = 1;  // with this parity, a wait on a new barrier returns immediately
#pragma unroll 1
    while (next.tokens > 0) {
      forget(prep.thread);  // recomputing derived addresses is less expensive than keeping them
      if constexpr (!kAhead) prep.load(r, next);
      mbarrier_wait(empty(stage), parity);
      prep.image = smem + stage * kStageBytes;
      prep.chunk = next;
      next = next.from(kTurns * C);
      // Pointers are advanced: recomputing them from the strides would cost instructions.
      forget(next.q), forget(next.k), forget(next.g);
      prep.prepare(r, kAhead ? &next : nullptr, [] { __syncwarp(); });
      fence_proxy_async();
      __syncwarp();
      if (prep.thread < kBlocks) hand_over(stage, prep.thread);
      stage += kTurns;
      if (stage >= kStages) stage = first, parity ^= 1;
    }
  }

  // Carries a warp's columns through all chunks. `g_v` and `g_o`: the run's first token at the warp's first column.
  __device__ __forceinline__ void carry(State& r_s, T const* g_v, int64_t v_stride, T* g_o, int64_t o_stride) const {
    int const nt = chunks();
    int stage = 0, parity = 0;
    uint32_t const s_ring = shared_address(smem) + kValues + threadIdx.x / 32 * (kValueStages * Step::kValueBytes);
    T const* g_values = Step::first_value(g_v, v_stride, lane());
    int left = tokens;  // tokens whose values are not yet being copied; after the last chunk copies are empty
    auto const copy_values = [&](int slot) {
      Step::copy_values(s_ring + slot % kValueStages * Step::kValueBytes, g_values, left, lane());
      cp_async_commit();
      g_values += C * v_stride;
      left -= C;
    };
#pragma unroll
    for (int chunk = 0; chunk < kValueStages - 1; ++chunk) copy_values(chunk);
#pragma unroll 1
    for (int chunk = 0; chunk < nt; ++chunk) {
      typename Step::Recalled r;
      typename Step::Channels r_channels;
      typename Step::Tokens r_v;
      typename Step::Operand r_a;
      unsigned char const* s_stage = smem + stage * kStageBytes;
      mbarrier_wait(full(stage), parity);
      Step::recall(r, r_channels, r_s, s_stage, shared_address(s_stage), lane());
      copy_values(chunk + kValueStages - 1);
      cp_async_wait<kValueStages - 1>();
      __syncwarp();
      Step::load_values(r_v, s_ring + chunk % kValueStages * Step::kValueBytes, lane());
      end_basic_block(chunk);  // the code before this stays before the wait
      Step::finish_recall(r, r_v);
      Step::pack_tokens(r_a, Step::news(r));
      Step::update(r_s, r_a, shared_address(s_stage));
      Step::within(Step::outputs(r), r_a, s_stage, lane());
      Step::store(g_o, o_stride, Step::outputs(r), tokens - chunk * C, lane());
      end_basic_block(chunk);  // stores of o are issued before the wait
      Step::finish_update(r_s);
      release(stage);
      g_o += C * o_stride;
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    cp_async_wait<0>();  // the empty copies after the end
  }

 private:
  // Called by one thread for each block: the chunk is stored, or its copy is started.
  __device__ __forceinline__ void hand_over(int stage, int block) const {
    if (kBlocks == 1 || block == rank) {
      mbarrier_arrive(full(stage));
      return;
    }
    uint32_t const image = shared_address(smem) + stage * kStageBytes;
    uint32_t const barrier = map_shared_rank(full(stage), block);
    mbarrier_arrive_expect_tx_cluster(barrier, Image::kUsedBytes);
    cp_async_bulk_to_block(map_shared_rank(image, block), image, Image::kUsedBytes, barrier);
  }
  // Called by a consumer that has read the stage.
  __device__ __forceinline__ void release(uint32_t stage) const {
    __syncwarp();
    if (lane() != 0) return;
    if constexpr (kBlocks > 1)
      mbarrier_arrive_cluster(map_shared_rank(empty(stage), stage % kBlocks));
    else
      mbarrier_arrive(empty(stage));
  }
};
