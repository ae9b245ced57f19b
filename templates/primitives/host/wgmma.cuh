// wgmma.mma_async: a warpgroup's D[64][N] (+)= A[64][16] B[16][N], fp32 accumulators, N = 8, 16, ..., 256, given by the
// size of `d`. Asynchronous: neither d, nor A in registers, nor shared operands may be accessed before wgmma_wait.
#pragma once
#include "mma.cuh"
#include "swizzle.cuh"
#include "types.cuh"

// Required before the first wgmma of a chain, and before the first after registers were modified.
__forceinline__ void wgmma_fence() { emulator::wgmma_fence(); }
__forceinline__ void wgmma_commit(emulator::Here site = {}) { emulator::wgmma_commit(site); }
// Waits until at most the newest N groups are in flight.
template <int N>
__forceinline__ void wgmma_wait(emulator::Here site = {}) {
  emulator::wgmma_wait(N, site);
}

// An operand in shared memory, in 8x8 core matrices of 16-bit elements. K-major: `stride` is the byte offset between
// groups of 8 rows, `leading` between groups of columns (unswizzled: of 8; swizzled: of a span; unused if K fits in
// one). MN-major swizzled: `stride` is the offset between groups of 8 k, `leading` between spans of the other dim;
// unswizzled: the two are exchanged.
__forceinline__ uint64_t wgmma_descriptor(uint32_t address, int leading, int stride, Swizzle swizzle) {
  uint64_t const mode = swizzle == Swizzle::kNone ? 0 : 4 - int(swizzle);
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | mode << 62;
}

// The descriptor of data `bytes` further, a multiple of 16. A single addition: addresses in shared memory do not carry
// into other fields.
__forceinline__ uint64_t wgmma_advance(uint64_t descriptor, int bytes) {
  return descriptor >> 32 << 32 | (uint32_t(descriptor) + (uint32_t(bytes) >> 4));
}

// A is in shared memory.
template <class T, Major A_MAJOR = Major::kK, Major B_MAJOR = Major::kK, int R>
__forceinline__ void wgmma_m64k16(float (&d)[R], uint64_t a, uint64_t b, bool accumulate, emulator::Here site = {}) {
  static_assert(R % 4 == 0 && R >= 4 && R <= 128, "wgmma has N = 8, 16, ..., 256");
  emulator::wgmma({d, nullptr, a, b, 2 * R, int(A_MAJOR), int(B_MAJOR), kElement<T>, accumulate}, site);
}
// A is in registers with the layout M64K16::A.
template <class T, Major B_MAJOR = Major::kK, int R>
__forceinline__ void wgmma_m64k16(float (&d)[R], uint32_t const (&a)[4], uint64_t b, bool accumulate,
                                  emulator::Here site = {}) {
  static_assert(R % 4 == 0 && R >= 4 && R <= 128, "wgmma has N = 8, 16, ..., 256");
  emulator::wgmma({d, a, 0, b, 2 * R, 0, int(B_MAJOR), kElement<T>, accumulate}, site);
}
