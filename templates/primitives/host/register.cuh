// Registers: moving them between warpgroups, and limits on what the compiler may do with them. A CPU has neither; what
// threads claim is counted, and that whole warpgroups claim it is checked.
#pragma once
#include "types.cuh"

// setmaxnreg: all warps of a warpgroup give registers back or ask for more; REGISTERS a thread, multiple of 8.
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

// Orders the registers' uses before and after it.
template <int N>
__forceinline__ void fence_registers(float (&)[N]) {}

// Ends the basic block. Call with x >= 0.
__forceinline__ void end_basic_block(int) {}
template <int M, int N>
__forceinline__ void end_basic_block(int, float (&)[M][N]) {}

// Makes x opaque to the compiler: nothing to do on a CPU.
__forceinline__ void forget(int&) {}
