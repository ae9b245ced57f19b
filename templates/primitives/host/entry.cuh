// How a launch reaches a kernel: its arguments as an array of pointers to values, as cuLaunchKernel takes them.
#pragma once
#include <type_traits>
#include <utility>

#include "builtin.cuh"

namespace emulator {

template <class A>
__forceinline__ auto value_of(void const* argument) {
  std::remove_cv_t<std::remove_reference_t<A>> value;
  __builtin_memcpy(&value, argument, sizeof value);  // its alignment there is nobody's promise
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

#define EMULATOR_ENTRY(kernel)                                                             \
  extern "C" EMULATOR_API void emulated_##kernel(void** a) { emulator::call(&kernel, a); } \
  extern "C" EMULATOR_API int const parameters_of_##kernel = emulator::count_parameters(&kernel);
