// Registers: redistribution between warpgroups, and constraints on the compiler.
#pragma once
#include "types.cuh"

// setmaxnreg (sm_90a): all warps of a warpgroup release or request registers; REGISTERS per thread, a multiple of 8.
// Ignored, with a note in the compiler's log, unless the kernel has __launch_bounds__(threads, 1).
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "setmaxnreg takes 24, 32, ..., 256");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "setmaxnreg takes 24, 32, ..., 256");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Orders uses of the registers before and after it: the compiler must not move arithmetic on accumulators across a
// wait.
template <int N>
__device__ __forceinline__ void fence_registers(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}

// Makes x opaque to the compiler, so that nothing that depends on x is kept in registers across a loop.
__device__ __forceinline__ void forget(int& x) { asm volatile("" : "+r"(x)); }

// Ends the basic block. ptxas moves a wgmma wait within a basic block, but not across its end. Call with x >= 0.
__device__ __forceinline__ void end_basic_block(int x) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.lt.s32 p, %0, 0;\n"
      "@p bra NEVER;\n"
      "bra.uni NEXT;\n"
      "NEVER: nanosleep.u32 1;\n"
      "NEXT:\n"
      "}" ::"r"(x)
      : "memory");
}

// Also ends the basic block, and makes the registers appear to change here: code that depends on them stays after this
// point. ptxas would otherwise start all of it at once, and spill. Call with x >= 0.
template <int M, int N>
__device__ __forceinline__ void end_basic_block(int x, float (&r)[M][N]) {
  if (x >= 0) return;
  asm volatile("nanosleep.u32 1;" ::: "memory");
#pragma unroll
  for (int i = 0; i < M * N; ++i) r[i / N][i % N] = 0;
}
