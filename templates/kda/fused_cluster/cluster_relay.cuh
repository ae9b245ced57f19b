// Blocks of a cluster that carry columns of one state through the same chunks: each prepares some, and copies them to
// all.
#pragma once
#include "bulk.cuh"
#include "cluster.cuh"
#include "cp_async.cuh"
#include "fence.cuh"
#include "kda/chunks/scan.cuh"
#include "mbarrier.cuh"
#include "opaque.cuh"
#include "thread.cuh"

// Like Relay, with kBlocks blocks of kColumns columns: chunks of C tokens pass through a ring of kStages stages in each
// block, and the block that prepares a chunk copies it into the same stage of the others. Each of its kProducers groups
// of Prep::kThreads threads prepares every kBlocks · kProducers-th chunk.
template <class T, int C, int kColumns, class Prep, class Step, int kBlocks, int kStages, int kProducers>
struct ClusterRelay {
  using Chunk = typename Prep::Chunk;
  using State = typename Step::State;
  using Image = typename Step::Image;
  static constexpr int kCarriers = kColumns / 16 / Step::kTiles;  // warps that carry the state
  static constexpr int kCarryThreads = kCarriers * 32;
  static constexpr int kPrepThreads = Prep::kThreads;
  static constexpr int kThreads = kCarryThreads + kProducers * kPrepThreads;
  static constexpr int kPrepBytes = (Prep::kBytes + 127) / 128 * 128;
  // A stage: an image, and the values of each block's columns; a block needs its own, and those of all blocks if it
  // prepares the chunk.
  static constexpr int kValueBytes = Step::kStageBytes - Step::kValues;
  static constexpr int kStageBytes = Step::kValues + kBlocks * kValueBytes;
  static constexpr int kCopied = Image::kUsedBytes + kValueBytes;  // bytes of a chunk for each other block
  static constexpr int kPrep = kStages * kStageBytes;  // start of the producers' shared memory
  static constexpr int kBarriers = kPrep + kProducers * kPrepBytes;
  static constexpr int kBytes = kBarriers + 16 * kStages;
  static constexpr bool kOneWarp = kPrepThreads == 32;  // a group, which then needs no barrier
  static_assert(kStages % (kBlocks * kProducers) == 0, "a stage is always filled by the same producers");
  static_assert(kOneWarp || kProducers <= 15, "named barriers: one a group of warps");
  static_assert(kValueBytes % 16 == 0 && Image::kUsedBytes % 16 == 0, "the copy engine moves 16 bytes at a time");

  unsigned char* smem;
  int tokens;  // tokens of the run
  int rank;    // rank of this block

  static __device__ __forceinline__ bool produces() { return threadIdx.x >= kCarryThreads; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ int chunks() const { return (tokens + C - 1) / C; }
  // Signals that a stage contains a chunk: an arrival of the group that prepared it, in any block, and the bytes that
  // it copies.
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
    cluster_sync();
  }
  // After this, no block arrives here, or copies to or from here.
  static __device__ __forceinline__ void finish() {
    __syncwarp();
    cluster_sync();
  }

  // The complete work of a producer. `run`: the rows of all chunks. `g_v`: the run's first token at the cluster's first
  // column.
  template <class Gate>
  __device__ __forceinline__ void produce(Chunk const& run, T const* g_v, int64_t v_stride, float scale,
                                          Gate const& gate) const {
    uint32_t const producer = threadIdx.x - kCarryThreads, group = producer / kPrepThreads;
    int const barrier = 1 + group, first = rank + kBlocks * group;
    auto const sync = [barrier] {
      if constexpr (kOneWarp)
        __syncwarp();
      else
        named_barrier_sync(barrier, kPrepThreads);
    };
    Prep prep(smem + kPrep + group * kPrepBytes, producer % kPrepThreads, scale, gate, run, smem);
    typename Prep::Registers r;
    Chunk next = run.from(first * C);
    prep.load(r, next);
    T const* g_values = g_v + first * C * v_stride;
    int stage = first;
    int parity = 1;  // with this parity, a wait on a new barrier returns immediately
#pragma unroll 1
    while (next.tokens > 0) {
      forget(prep.thread);  // recomputing derived addresses is less expensive than keeping them
      mbarrier_wait(empty(stage), parity);
      prep.image = smem + stage * kStageBytes;
      prep.chunk = next;
      load_values(shared_address(prep.image), g_values, v_stride, next.tokens, prep.thread);
      next = next.from(kBlocks * kProducers * C);
      g_values += kBlocks * kProducers * C * v_stride;
      // Pointers are advanced: recomputed from the strides, they would take a fifth of all instructions at K = 64.
      forget(next.q), forget(next.k), forget(next.g), forget(g_values);
      prep.prepare(r, &next, sync);
      cp_async_wait<0>();
      fence_proxy_async();
      sync();
      if (prep.thread < kBlocks) hand_over(stage, prep.thread);
      stage += kBlocks * kProducers;
      if (stage >= kStages) stage = first, parity ^= 1;
    }
  }

  // Carries a warp's columns, from `first` of the block's on, through all chunks. `g_o`: the run's first token at the
  // warp's first column.
  __device__ __forceinline__ void carry(State& r_s, int first, T* g_o, int64_t o_stride) const {
    int const nt = chunks();
    int stage = 0, parity = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < nt; ++chunk) {
      typename Step::Tokens r_x, r_o;
      typename Step::Operand r_a;
      typename Step::Ahead ahead;
      unsigned char const* s_stage = smem + stage * kStageBytes;
      int const values = rank * kValueBytes;
      mbarrier_wait(full(stage), parity);
      Step::load_ahead(ahead, s_stage + values, shared_address(s_stage) + values, first, lane());
      Step::unpack_values(r_x, ahead);
      Step::recall(r_x, r_o, r_s, ahead, shared_address(s_stage), lane(), [] {});
      Step::pack_tokens(r_a, r_x);
      Step::update(r_s, r_a, s_stage, shared_address(s_stage), lane());
      Step::within(r_o, r_a, s_stage, lane());
      release(stage);
      Step::store(g_o, o_stride, r_o, tokens - chunk * C, lane());
      g_o += C * o_stride;
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }

 private:
  // The values of all blocks' columns.
  static __device__ __forceinline__ void load_values(uint32_t s_stage, T const* g_values, int64_t stride, int tokens,
                                                     uint32_t thread) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      Step::template load_v<kPrepThreads>(s_stage + block * kValueBytes, g_values + block * kColumns, stride, tokens,
                                          thread);
    cp_async_commit();
  }

  // Called by one thread for each block: the chunk is stored, or its copy is started.
  __device__ __forceinline__ void hand_over(int stage, int block) const {
    if (block == rank) {
      mbarrier_arrive(full(stage));
      return;
    }
    uint32_t const image = shared_address(smem) + stage * kStageBytes;
    uint32_t const values = image + Step::kValues + block * kValueBytes;
    uint32_t const barrier = map_shared_rank(full(stage), block);
    mbarrier_arrive_expect_tx_cluster(barrier, kCopied);
    cp_async_bulk_to_block(map_shared_rank(image, block), image, Image::kUsedBytes, barrier);
    cp_async_bulk_to_block(map_shared_rank(values, block), values, kValueBytes, barrier);
  }
  // Called by a consumer that has read the stage.
  __device__ __forceinline__ void release(uint32_t stage) const {
    __syncwarp();
    if (lane() == 0) mbarrier_arrive_cluster(map_shared_rank(empty(stage), stage % kBlocks));
  }
};
