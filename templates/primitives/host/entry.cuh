// How a launch calls a kernel: arguments are an array of pointers to values, as for cuLaunchKernel.
#pragma once
#include <type_traits>
#include <utility>

#include "builtin.cuh"

namespace emulator {

template <class A>
__forceinline__ auto value_of(void const* argument) {
  std::remove_cv_t<std::remove_reference_t<A>> value;
  __builtin_memcpy(&value, argument, sizeof value);  // the argument may be unaligned
  return value;
}

template <class... A, size_t... I>
__forceinline__ void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(value_of<A>(arguments[I])...);
}
template <class... A>
__forceinline__ void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}

template <class... A>
constexpr int count_parameters(void (*)(A...)) {
  return int(sizeof...(A));
}

}  // namespace emulator

// `symbol` names the C++ expression `...`: a template instance contains commas.
#define EMULATOR_ENTRY(symbol, ...)                                                             \
  extern "C" EMULATOR_API void emulated_##symbol(void** a) { emulator::call(&__VA_ARGS__, a); } \
  extern "C" EMULATOR_API int const parameters_of_##symbol = emulator::count_parameters(&__VA_ARGS__);
// A `__constant__` symbol that launches write.
#define EMULATOR_SYMBOL(symbol) extern "C" EMULATOR_API size_t const bytes_of_##symbol = sizeof(symbol);
