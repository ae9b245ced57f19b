// A block in which producer warps prepare the chunks of a run and consumer warps carry columns of a state through them.
#pragma once
#include "cp_async.cuh"
#include "kda/chunks/scan.cuh"
#include "opaque.cuh"
#include "thread.cuh"

// Chunks of C tokens pass through a ring of kStages stages in shared memory. kCarriers warps carry 16 Step::kTiles
// columns each; kProducers groups of Prep::kThreads threads take turns, so that one waits while another computes.
template <class T, int C, class Prep, class Step, int kCarriers, int kStages, int kProducers>
struct Relay {
  using Chunk = typename Prep::Chunk;
  using State = typename Step::State;
  using Tokens = typename Step::Tokens;
  static constexpr int kCarryThreads = kCarriers * 32;
  static constexpr int kPrepThreads = Prep::kThreads;
  static constexpr int kThreads = kCarryThreads + kProducers * kPrepThreads;
  static constexpr int kPrepBytes = (Prep::kBytes + 127) / 128 * 128;
  static constexpr int kPrep = kStages * Step::kStageBytes;  // start of the producers' shared memory
  static constexpr int kBytes = kPrep + kProducers * kPrepBytes;
  // A stage is full, and a stage may be refilled: two barriers of all consumers and one group of producers each.
  static constexpr int kHandover = kCarryThreads + kPrepThreads;
  static constexpr bool kOneWarp = kPrepThreads == 32;  // a group, which then needs no barrier
  static_assert(kStages % kProducers == 0, "a stage is always filled by the same producers");
  static_assert(2 * kStages + (kOneWarp ? 0 : kProducers) <= 15, "named barriers: two a stage, one a group of warps");

  unsigned char* smem;
  int tokens;  // tokens of the run

  static __device__ __forceinline__ bool produces() { return threadIdx.x >= kCarryThreads; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int full(int stage) { return 1 + stage; }
  static __device__ __forceinline__ int empty(int stage) { return 1 + kStages + stage; }
  __device__ __forceinline__ int chunks() const { return (tokens + C - 1) / C; }

  // The complete work of a producer: every kProducers-th chunk, starting with that of its group. `run`: the rows of all
  // chunks. `g_v`: the run's first token at the block's first column, or null if no column has values.
  template <class Gate>
  __device__ __forceinline__ void produce(Chunk const& run, T const* g_v, int64_t v_stride, float scale,
                                          Gate const& gate) const {
    uint32_t const producer = threadIdx.x - kCarryThreads, group = producer / kPrepThreads;
    int const barrier = 1 + 2 * kStages + group;
    auto const sync = [barrier] {
      if constexpr (kOneWarp)
        __syncwarp();
      else
        named_barrier_sync(barrier, kPrepThreads);
    };
    Prep prep(smem + kPrep + group * kPrepBytes, producer % kPrepThreads, scale, gate, run, smem);
    typename Prep::Registers r;
    Chunk next = run.from(group * C);
    prep.load(r, next);
    T const* g_values = g_v + group * C * v_stride;
    int stage = group;
    bool filled = false;  // whether every stage of this group has been filled at least once
#pragma unroll 1
    while (next.tokens > 0) {
      forget(prep.thread);  // recomputing derived addresses is less expensive than keeping them
      if (filled) named_barrier_sync(empty(stage), kHandover);
      prep.image = smem + stage * Step::kStageBytes;
      prep.chunk = next;
      if (Prep::kOutputs || g_v)
        Step::template load_v<kPrepThreads>(shared_address(prep.image), g_values, v_stride, next.tokens, prep.thread);
      cp_async_commit();
      next = next.from(kProducers * C);
      g_values += kProducers * C * v_stride;
      // Pointers are advanced: recomputing them from the strides would cost instructions and memory accesses.
      forget(next.q), forget(next.k), forget(next.g), forget(g_values);
      prep.prepare(r, &next, sync);
      cp_async_wait<0>();
      named_barrier_arrive(full(stage), kHandover);
      stage += kProducers;
      if (stage >= kStages) stage = group, filled = true;
    }
  }

  // Carries a warp's columns, from `first` of the block's on, through all chunks. `values`: whether they have values in
  // v. `g_o`: the run's first token at the warp's first column.
  __device__ __forceinline__ void carry(State& r_s, int first, bool values, T* g_o, int64_t o_stride) const {
    carry_to(r_s, first, values, [&](Tokens const& r_o, int left) {
      Step::store(g_o, o_stride, r_o, left, lane());
      g_o += C * o_stride;
    });
  }
  // Carries a warp's columns, and calls `store(r_o, left)` with the outputs of each chunk, of which `left` tokens
  // exist.
  template <class Store>
  __device__ __forceinline__ void carry_to(State& r_s, int first, bool values, Store store) const {
    int const nt = chunks();
    int stage = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < nt; ++chunk) {
      Tokens r_x, r_o;
      typename Step::Operand r_a;
      unsigned char const* s_stage = smem + stage * Step::kStageBytes;
      named_barrier_sync(full(stage), kHandover);
      typename Step::Ahead ahead;
      if (values) {
        Step::load_ahead(ahead, s_stage, shared_address(s_stage), first, lane());
        Step::unpack_values(r_x, ahead);
      } else {
        clear(r_x);
      }
      Step::template recall<Prep::kOutputs>(r_x, r_o, r_s, ahead, shared_address(s_stage), lane(), [] {});
      Step::pack_tokens(r_a, r_x);
      Step::update(r_s, r_a, s_stage, shared_address(s_stage), lane());
      if constexpr (Prep::kOutputs) Step::within(r_o, r_a, s_stage, lane());
      if (chunk + kStages < nt) named_barrier_arrive(empty(stage), kHandover);
      if constexpr (Prep::kOutputs) store(r_o, tokens - chunk * C);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
  }

  // The work of a warp without columns, next to others that have some.
  __device__ __forceinline__ void look_on() const {
    int const nt = chunks();
    int stage = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < nt; ++chunk) {
      named_barrier_sync(full(stage), kHandover);
      if (chunk + kStages < nt) named_barrier_arrive(empty(stage), kHandover);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
  }
};
