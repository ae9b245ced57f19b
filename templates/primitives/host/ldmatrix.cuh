// ldmatrix and stmatrix: N 8x8 matrices of 16-bit elements between shared memory and registers with the layout
// Matrix8x8, or Matrix8x8Trans. Lane 8 * i + row supplies the 16-byte aligned shared address of a row of matrix i.
#pragma once
#include "types.cuh"

template <int N>
__forceinline__ void ldmatrix(uint32_t (&r)[N], uint32_t address, emulator::Here site = {}) {
  static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
  emulator::ldmatrix(r, N, false, address, site);
}
template <int N>
__forceinline__ void ldmatrix_trans(uint32_t (&r)[N], uint32_t address, emulator::Here site = {}) {
  static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
  emulator::ldmatrix(r, N, true, address, site);
}
template <int N>
__forceinline__ void stmatrix(uint32_t address, uint32_t const (&r)[N], emulator::Here site = {}) {
  static_assert(N == 1 || N == 2 || N == 4, "stmatrix stores 1, 2 or 4 matrices");
  emulator::stmatrix(address, r, N, false, site);
}
template <int N>
__forceinline__ void stmatrix_trans(uint32_t address, uint32_t const (&r)[N], emulator::Here site = {}) {
  static_assert(N == 1 || N == 2 || N == 4, "stmatrix stores 1, 2 or 4 matrices");
  emulator::stmatrix(address, r, N, true, site);
}
