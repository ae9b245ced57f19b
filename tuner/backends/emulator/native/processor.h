// Processor-specific code: vectors, the rounding mode, and the registers of a context.
#pragma once
#include <ucontext.h>

#include <cstdint>

namespace emulator {

// One vector register of doubles, of their bits, and of fp32 values.
#if defined(__x86_64__)
constexpr int kVector = 4;
#else
constexpr int kVector = 2;
#endif
using Doubles [[gnu::vector_size(8 * kVector)]] = double;
using Longs [[gnu::vector_size(8 * kVector)]] = int64_t;
using Singles [[gnu::vector_size(4 * kVector)]] = float;
using Shifts [[gnu::vector_size(4 * kVector)]] = int32_t;
using Ints [[gnu::vector_size(32)]] = int32_t;  // eight numbers, which may occupy several registers
using EightHalves [[gnu::vector_size(16)]] = short;

#if defined(__x86_64__)

using Eight [[gnu::vector_size(32)]] = float;
inline Shifts part(Ints x, int first) {
  return first ? __builtin_shufflevector(x, x, 4, 5, 6, 7) : __builtin_shufflevector(x, x, 0, 1, 2, 3);
}
inline Doubles widened(Singles x) { return __builtin_ia32_cvtps2pd256(x); }
inline Longs widened(Shifts x) { return __builtin_bit_cast(Longs, __builtin_ia32_pmovsxdq256(x)); }
inline Ints joined(Shifts const (&x)[2]) { return __builtin_shufflevector(x[0], x[1], 0, 1, 2, 3, 4, 5, 6, 7); }
inline bool any(Ints mask) { return __builtin_ia32_movmskps256(__builtin_bit_cast(Eight, mask)); }
inline Doubles cut_off(Doubles x) { return __builtin_ia32_roundpd256(x, 3 | 8); }  // toward zero, without traps

constexpr uint32_t kTowardsZero = 3 << 13;
inline uint32_t float_control() { return __builtin_ia32_stmxcsr(); }
inline void set_float_control(uint32_t control) { __builtin_ia32_ldmxcsr(control); }

// Saved by `emulator_switch`: six registers and the return address, plus one word for ABI alignment.
constexpr int kContextWords = 8, kReturnWord = 6;

// The interrupted instruction.
inline uintptr_t instruction_of(void* interrupted) {
  return uintptr_t(static_cast<ucontext_t*>(interrupted)->uc_mcontext.gregs[REG_RIP]);
}

// Makes an interrupted context continue elsewhere on another stack; returns the instruction it was at.
inline uintptr_t divert(void* interrupted, void (*where)(), unsigned char* stack_end) {
  auto& registers = static_cast<ucontext_t*>(interrupted)->uc_mcontext.gregs;
  auto const instruction = instruction_of(interrupted);
  registers[REG_RIP] = reinterpret_cast<greg_t>(where);
  registers[REG_RSP] = reinterpret_cast<greg_t>(stack_end - 64 - 8);  // as after a call: 8 below a multiple of 16
  return instruction;
}

#elif defined(__aarch64__)

inline Shifts part(Ints x, int first) { return {x[first], x[first + 1]}; }
inline Doubles widened(Singles x) { return __builtin_convertvector(x, Doubles); }
inline Longs widened(Shifts x) { return __builtin_convertvector(x, Longs); }
inline Ints joined(Shifts const (&x)[4]) { return __builtin_bit_cast(Ints, x); }
inline bool any(Ints mask) {
  int32_t found = 0;
  for (int i = 0; i < 8; i++) found |= mask[i];
  return found != 0;
}
inline Doubles cut_off(Doubles x) { return Doubles{__builtin_trunc(x[0]), __builtin_trunc(x[1])}; }

constexpr uint32_t kTowardsZero = 3 << 22;
inline uint32_t float_control() { return __builtin_aarch64_get_fpcr(); }
inline void set_float_control(uint32_t control) { __builtin_aarch64_set_fpcr(control); }

// x19 to x28, the frame pointer, the return address, d8 to d15.
constexpr int kContextWords = 20, kReturnWord = 11;

inline uintptr_t instruction_of(void* interrupted) {
  return uintptr_t(static_cast<ucontext_t*>(interrupted)->uc_mcontext.pc);
}

inline uintptr_t divert(void* interrupted, void (*where)(), unsigned char* stack_end) {
  auto& registers = static_cast<ucontext_t*>(interrupted)->uc_mcontext;
  auto const instruction = instruction_of(interrupted);
  registers.pc = reinterpret_cast<uintptr_t>(where);
  registers.sp = reinterpret_cast<uintptr_t>(stack_end - 64);
  return instruction;
}

#else
#error "the emulator runs on x86-64 and aarch64"
#endif

}  // namespace emulator
