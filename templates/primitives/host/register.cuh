// Registers: redistribution between warpgroups, and constraints on the compiler. A CPU has neither; the emulator counts
// the requested registers, and checks that complete warpgroups request them.
#pragma once
#include "types.cuh"

// setmaxnreg: all warps of a warpgroup release or request registers; REGISTERS per thread, a multiple of 8.
template <int REGISTERS>
__forceinline__ void setmaxnreg_dec(emulator::Here site = {}) {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "setmaxnreg takes 24, 32, ..., 256");
  emulator::setmaxnreg(REGISTERS, site);
}
template <int REGISTERS>
__forceinline__ void setmaxnreg_inc(emulator::Here site = {}) {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "setmaxnreg takes 24, 32, ..., 256");
  emulator::setmaxnreg(REGISTERS, site);
}

// Orders uses of the registers before and after it.
template <int N>
__forceinline__ void fence_registers(float (&)[N]) {}

// Ends the basic block. Call with x >= 0.
__forceinline__ void end_basic_block(int) {}
template <int M, int N>
__forceinline__ void end_basic_block(int, float (&)[M][N]) {}

// Makes x opaque to the compiler: no effect on a CPU.
__forceinline__ void forget(int&) {}
