// tcgen05: D[128][N] (+)= A[128][16] B[16][N] in tensor memory, which each SM has in addition to its registers: 128
// lanes of 512 columns of 32 bits; an address is lane << 16 | column. Row m of D is lane m, its N fp32 sums are N
// columns. One thread issues; the operands and results of a product must not be accessed until a barrier passed to
// tcgen05_commit completes.
#pragma once
#include "swizzle.cuh"
#include "types.cuh"

// ---- single-thread issue

// True for one lane of a converged warp, always the same.
__forceinline__ bool elect_one(emulator::Here site = {}) { return emulator::elect_one(site); }

// ---- tensor memory

// A complete warp allocates 32, 64, 128, 256 or 512 columns; the address of the first is written to `destination` in
// shared memory. It waits while other blocks of its SM hold too many. A block's allocations must not grow, and it must
// free all of them before it exits.
__forceinline__ void tcgen05_alloc(uint32_t destination, int columns, emulator::Here site = {}) {
  emulator::tcgen05_alloc(destination, columns, site);
}
__forceinline__ void tcgen05_dealloc(uint32_t address, int columns, emulator::Here site = {}) {
  emulator::tcgen05_dealloc(address, columns, site);
}
// This block makes no further allocations, so other blocks of its SM need not wait for it.
__forceinline__ void tcgen05_relinquish_alloc_permit(emulator::Here site = {}) {
  emulator::tcgen05_relinquish_alloc_permit(site);
}

// ---- products

// An operand in shared memory, in 8x8 core matrices of 16-bit elements. K-major: `stride` is the byte offset between
// groups of 8 rows, `leading` between groups of 8 columns (unswizzled; otherwise unused: K fits in a span). MN-major
// swizzled: `stride` is the offset between groups of 8 k, `leading` between spans of the other dim; unswizzled: the two
// are exchanged. A swizzle's pattern starts at a multiple of 8 spans.
__forceinline__ uint64_t tcgen05_descriptor(uint32_t address, int leading, int stride, Swizzle swizzle) {
  uint64_t const mode = swizzle == Swizzle::kNone ? 0 : 8 - 2 * int(swizzle);
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 |
         uint64_t(1) << 46 | mode << 61;
}

// The descriptor of data `bytes` further, a multiple of 16. A single addition: addresses in shared memory do not carry
// into other fields.
__forceinline__ uint64_t tcgen05_advance(uint64_t descriptor, int bytes) {
  return descriptor >> 32 << 32 | (uint32_t(descriptor) + (uint32_t(bytes) >> 4));
}

template <class T>
constexpr int kTcgen05Format = -1;
template <>
constexpr int kTcgen05Format<fp16> = 0;
template <>
constexpr int kTcgen05Format<bf16> = 1;

// The instruction descriptor for tcgen05_mma: A[128][16] B[16][N] of type T, N = 16, 32, ..., 256.
template <class T, int N, Major A = Major::kK, Major B = Major::kK>
constexpr uint32_t tcgen05_instruction() {
  static_assert(kTcgen05Format<T> >= 0, "tcgen05_mma takes bf16 and fp16");
  static_assert(N % 16 == 0 && N >= 16 && N <= 256, "tcgen05_mma has N = 16, 32, ..., 256");
  return 1u << 4 | uint32_t(kTcgen05Format<T>) << 7 | uint32_t(kTcgen05Format<T>) << 10 | uint32_t(A) << 15 |
         uint32_t(B) << 16 | uint32_t(N / 8) << 17 | 128u / 16 << 24;
}

// Issued by one thread. A and B are in shared memory. The products of a thread execute in order.
__forceinline__ void tcgen05_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate,
                                 emulator::Here site = {}) {
  emulator::tcgen05_mma({d, instruction, a, b, false, accumulate}, site);
}
// A is in tensor memory: row m in lane m, 16 elements of k in 8 columns, the even ones in the low halves.
__forceinline__ void tcgen05_mma(uint32_t d, uint32_t a, uint64_t b, uint32_t instruction, bool accumulate,
                                 emulator::Here site = {}) {
  emulator::tcgen05_mma({d, instruction, a, b, true, accumulate}, site);
}

// Arrives once on `barrier` when all products issued by this thread have completed.
__forceinline__ void tcgen05_commit(uint32_t barrier, emulator::Here site = {}) {
  emulator::tcgen05_commit(barrier, site);
}

// ---- tensor memory and registers: a complete warp, its own 32 lanes

// Warp w accesses the 32 lanes from 32 (w % 4) on. `address` contains the first of them, and r[i] of a thread is column
// i of its lane. Asynchronous: neither r nor the columns may be accessed before tcgen05_wait_ld or _st.
template <class T, int N>
__forceinline__ void tcgen05_ld_32x32b(T (&r)[N], uint32_t address, emulator::Here site = {}) {
  static_assert(sizeof(T) == 4 && N >= 1 && N <= 128 && (N & (N - 1)) == 0, "1, 2, 4, ..., 128 registers");
  emulator::tcgen05_ld(r, N, address, site);
}
template <class T, int N>
__forceinline__ void tcgen05_st_32x32b(uint32_t address, T const (&r)[N], emulator::Here site = {}) {
  static_assert(sizeof(T) == 4 && N >= 1 && N <= 128 && (N & (N - 1)) == 0, "1, 2, 4, ..., 128 registers");
  emulator::tcgen05_st(address, r, N, site);
}
__forceinline__ void tcgen05_wait_ld(emulator::Here site = {}) { emulator::tcgen05_wait_ld(site); }
__forceinline__ void tcgen05_wait_st(emulator::Here site = {}) { emulator::tcgen05_wait_st(site); }

// ---- order between threads

// Orders this thread's accesses to tensor memory before the following barrier.
__forceinline__ void tcgen05_fence_before_thread_sync() { emulator::tcgen05_fence_before_thread_sync(); }
// Orders other threads' accesses before a barrier ahead of this thread's subsequent ones. Also needed after a wait for
// tcgen05_commit.
__forceinline__ void tcgen05_fence_after_thread_sync() { emulator::tcgen05_fence_after_thread_sync(); }
