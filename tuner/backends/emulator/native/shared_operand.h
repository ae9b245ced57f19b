// Operands of wgmma and tcgen05 in shared memory: 16-bit elements in core matrices of 8 rows x 16 bytes.
#pragma once
#include <cstring>

#include "element.h"
#include "memory.h"
#include "swizzle.cuh"

namespace emulator {

constexpr int kK = 16;  // k of one product
constexpr int kElementBytes = 2;
constexpr int kMostColumns = 256;  // maximum n of D
constexpr int kCore = 8;  // rows of a core matrix, and elements per row
constexpr uint32_t kCoreRowBytes = 16;

struct SharedOperand {
  uint32_t start, leading, stride;  // in bytes
  Swizzle swizzle;
  int major;  // 0: K-major, 1: MN-major
};

// A descriptor field that holds a byte count.
inline uint32_t bytes_field(uint64_t descriptor, int shift) { return uint32_t(descriptor >> shift & 0x3fff) << 4; }

// Address of the 8 contiguous elements of a core matrix row: along k from (mn, k) if K-major, else along mn.
inline uint32_t core_row(SharedOperand const& o, int mn, int k) {
  auto const span = uint32_t(swizzle_span(o.swizzle));
  uint32_t const elements = span / 2, m = uint32_t(mn), kk = uint32_t(k);
  uint32_t offset;
  if (o.major == 0)
    offset = m / 8 * o.stride + m % 8 * span + kk / elements * o.leading + kk % elements * 2;
  else if (o.swizzle == Swizzle::kNone)
    offset = m / 8 * o.stride + kk % 8 * span + kk / 8 * o.leading;
  else
    offset = m / elements * o.leading + m % elements * 2 + kk % 8 * span + kk / 8 * o.stride;
  return swizzled(o.start + offset, o.swizzle);
}

// Visits (address, mn, k) of every core row of an operand's rows [first, first + count).
template <class F>
void each_core_row(SharedOperand const& operand, int first, int count, F visit) {
  if (operand.major == 0) {
    for (int mn = first; mn < first + count; mn++)
      for (int k = 0; k < kK; k += kCore) visit(core_row(operand, mn, k), mn - first, k);
  } else {
    for (int k = 0; k < kK; k++)
      for (int mn = first; mn < first + count; mn += kCore) visit(core_row(operand, mn, k), mn - first, k);
  }
}

// Loads rows [first, first + count) of an operand into tile[k * pitch + mn].
inline void load_operand(float* tile, int pitch, SharedOperand const& operand, int first, int count, Element element,
                         char const* what, Site site) {
  each_core_row(operand, first, count, [=](uint32_t address, int mn, int k) {
    uint16_t row[kCore];
    std::memcpy(row, shared_pointer(address, kCoreRowBytes, kCoreRowBytes, what, site), sizeof row);
    for (int i = 0; i < kCore; i++) {
      float& target = operand.major == 0 ? tile[(k + i) * pitch + mn] : tile[k * pitch + mn + i];
      target = widen(row[i], element);
    }
  });
}

}  // namespace emulator
