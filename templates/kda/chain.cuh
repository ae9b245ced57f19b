// A block of warps that carries BV columns of a state through a run of chunks, kRows of them per warp, in registers.
#pragma once
#include "cp_async.cuh"
#include "kda/chunks/scan.cuh"

// The inputs of a block: the images of its chunks, and v from its first token and column on.
template <class T>
struct Run {
  unsigned char const* g_image;
  T const* g_v;
  int64_t v_stride;
  int tokens;  // tokens of the run
  int values;  // tokens with a v; that of the others is zero
};

// Chunks pass through a ring of stages, filled by all warps or, with kLoader, by a dedicated warp. Without kOutputs
// only the state is computed: the data for o are neither copied nor multiplied.
template <class T, int K, int C, int BV, int kRows, int kStages, int kPartials, int kAhead, bool kLoader, bool kOutputs,
          class Operands = Bf16Operands>
struct Chain {
  using Step = Scan<T, K, C, BV, kRows / 16, kPartials, kAhead, Operands>;
  using Image = typename Step::Image;
  using State = typename Step::State;
  static constexpr int kComputeThreads = BV / kRows * 32;
  static constexpr int kThreads = kComputeThreads + 32 * kLoader;
  static constexpr int kLoaders = kLoader ? 32 : kThreads;
  static constexpr int kBytes = kStages * Step::kStageBytes;
  static constexpr int kImageBytes = Image::kBytes;
  static_assert(kRows % 16 == 0 && BV % kRows == 0, "warps own whole mma tiles of columns");
  static_assert(kStages >= 2 + (kAhead > 0), "a stage is read, one is waited for when loading ahead, and one is filled");

  unsigned char* smem;
  uint32_t s_first;
  Run<T> ahead;      // what remains to be loaded
  uint32_t filled;   // offset of the stage to be filled
  int left;          // tokens that the state has not processed

  __device__ __forceinline__ Chain(unsigned char* smem, Run<T> const& run)
      : smem(smem), s_first(shared_address(smem)), ahead(run), filled(0), left(run.tokens) {}

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ int first_row() { return warp() * kRows; }
  static __device__ __forceinline__ bool loads() { return !kLoader || warp() == kComputeThreads / 32; }
  static __device__ __forceinline__ bool only_loads() { return kLoader && loads(); }
  static __device__ __forceinline__ int loader() { return kLoader ? lane() : threadIdx.x; }

  __device__ __forceinline__ void fill_first_stages() {
    if (!loads()) return;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) issue();
  }

  // The complete work of a loader warp: a separate loop, so that its registers do not add to those of the others.
  __device__ __forceinline__ void load() {
    if (kAhead > 0) acquire<true>(true);
#pragma unroll 1
    for (; left > 0; left -= C) {
      acquire<false>(true);
      issue();
    }
  }

  // Carries the state through all chunks. `g_o`: the run's first token at the warp's first column.
  __device__ __forceinline__ void carry(State& r_s, T* g_o, int64_t o_stride) {
    uint32_t stage = 0;
    auto const advance = [&] {
      acquire<false>(!kLoader);
      if constexpr (!kLoader) issue();
    };
    typename Step::Ahead r_ahead;
    if constexpr (kAhead > 0) {
      acquire<true>(!kLoader);
      if (left > 0) Step::load_ahead(r_ahead, smem, s_first, first_row(), lane());
    }
#pragma unroll 1
    for (; left > 0; left -= C) {
      typename Step::Tokens r_x, r_o;
      typename Step::Operand r_a;
      uint32_t const s_stage = s_first + stage, following = next(stage);
      if constexpr (kAhead == 0) {
        advance();
        Step::load_ahead(r_ahead, smem + stage, s_stage, first_row(), lane());
      }
      Step::unpack_values(r_x, r_ahead);
      Step::template recall<kOutputs>(r_x, r_o, r_s, r_ahead, s_stage, lane(), [&] {
        if constexpr (kAhead > 0) advance();
      });
      Step::pack_tokens(r_a, r_x);
      // After the last chunk, this one is loaded once more, and not used.
      if constexpr (kAhead > 0) {
        uint32_t const after = left > C ? following : stage;
        Step::load_ahead(r_ahead, smem + after, s_first + after, first_row(), lane());
      }
      Step::update(r_s, r_a, smem + stage, s_stage, lane());
      if constexpr (kOutputs) {
        Step::within(r_o, r_a, smem + stage, lane());
        Step::store(g_o, o_stride, r_o, left, lane());
        g_o += C * o_stride;
      }
      stage = following;
    }
  }

 private:
  static __device__ __forceinline__ uint32_t next(uint32_t stage) {
    return stage == kBytes - Step::kStageBytes ? 0 : stage + Step::kStageBytes;
  }

  // Starts copying the next chunk; after the last one, an empty group keeps the group count consistent.
  __device__ __forceinline__ void issue() {
    uint32_t const s_stage = s_first + filled;
    if (ahead.tokens > 0) {
      if constexpr (kOutputs) {
        Step::template load_image<kLoaders>(s_stage, ahead.g_image, loader());
      } else {
        copy<Image::kKeys, Image::kQueries>(s_stage);
        copy<Image::kUpdates, Image::kOutput>(s_stage);
        copy<Image::kDecay, Image::kUsedBytes>(s_stage);
      }
      Step::template load_v<kLoaders>(s_stage, ahead.g_v, ahead.v_stride, ahead.values, loader());
    }
    cp_async_commit();
    ahead.g_image += kImageBytes;
    ahead.g_v += C * ahead.v_stride;
    ahead.tokens -= C;
    ahead.values -= C;
    filled = next(filled);
  }
  template <int kFrom, int kTo>
  __device__ __forceinline__ void copy(uint32_t s_stage) const {
#pragma unroll 4
    for (int i = kFrom + 16 * loader(); i < kTo; i += 16 * kLoaders) cp_async<16>(s_stage + i, ahead.g_image + i);
  }

  // The oldest unprocessed stage has arrived, and every warp has finished with the stages before its current one. When
  // loading ahead, the wait is in the middle of a chunk, except for the first one.
  template <bool kFirst>
  static __device__ __forceinline__ void acquire(bool waits) {
    if (waits) cp_async_wait<kFirst || kAhead == 0 ? kStages - 2 : kStages - 3>();
    named_barrier_sync(1, kThreads);
  }
};
