// Hooks for every load and store of a checked kernel: the functions that -fsanitize=thread calls; libtsan is not
// linked. In a plain run they do nothing.
#include "banks.h"
#include "report.h"
#include "shadow.h"

namespace emulator {

namespace {

void check_shared_access(uintptr_t address, uint32_t bytes, bool writes, Site site) {
  auto const offset = ptrdiff_t(address - reinterpret_cast<uintptr_t>(block->shared.base));
  if (offset >= 0 && offset + ptrdiff_t(bytes) <= ptrdiff_t(block->shared.size)) {
    note_bank_access(uint32_t(offset), bytes, site);
    check_shared(kSharedBase + uint32_t(offset), bytes, writes, site);
    return;
  }
  set_place(report("out_of_bounds", site, "%s of %u bytes at shared offset %td of %u", writes ? "write" : "read", bytes,
                   offset, block->shared.size),
            "shared", offset);
}

// An access that must be aligned to its type, in memory that a GPU has.
void check_alignment(void const* p, uint32_t bytes, Site site) {
  auto const address = reinterpret_cast<uintptr_t>(p);
  if (address % bytes == 0) return;
  if (in_shared_map(block->shared, address))
    set_place(report("misaligned", site, "access of %u bytes at an address that is no multiple of it", bytes), "shared",
              int64_t(address - reinterpret_cast<uintptr_t>(block->shared.base)));
  else if (Buffer const* buffer = in_global_range(address) ? find_buffer(address) : nullptr)
    set_place(report("misaligned", site, "access of %u bytes at an address that is no multiple of it", bytes),
              buffer->name, int64_t(address - buffer->begin));
}

}  // namespace

void check_access(void const* p, uint32_t bytes, bool writes, Site site) {
  auto const address = reinterpret_cast<uintptr_t>(p);
  if (in_shared_map(block->shared, address))
    check_shared_access(address, bytes, writes, site);
  else if (in_global_range(address))
    check_global(address, bytes, writes, false, site);
}

void check_aligned_access(void const* p, uint32_t bytes, bool writes, Site site) {
  check_alignment(p, bytes, site);
  check_access(p, bytes, writes, site);
}

void check_atomic(void const* p, uint32_t bytes, bool writes, Site site) {
  auto const address = reinterpret_cast<uintptr_t>(p);
  auto const offset = address - reinterpret_cast<uintptr_t>(block->shared.base);
  bool const inside = offset < block->shared.size && bytes <= block->shared.size - offset;
  if (inside) {
    if (writes) check_shared_atomic(kSharedBase + uint32_t(offset), bytes, site);
  } else if (in_shared_map(block->shared, address)) {
    check_shared_access(address, bytes, writes, site);
  } else if (in_global_range(address)) {
    check_global(address, bytes, writes, true, site);
  }
}

}  // namespace emulator

#define EMULATOR_HOOK extern "C" EMULATOR_API void
#define EMULATOR_ACCESS(name, check, bytes, writes)                                              \
  EMULATOR_HOOK name(void* p) {                                                                  \
    if (!emulator::checked()) return;                                                            \
    emulator::check(p, bytes, writes, emulator::Site::instruction(__builtin_return_address(0))); \
  }
#define EMULATOR_ACCESSES(bytes)                                            \
  EMULATOR_ACCESS(__tsan_read##bytes, check_aligned_access, bytes, false)   \
  EMULATOR_ACCESS(__tsan_write##bytes, check_aligned_access, bytes, true)   \
  EMULATOR_ACCESS(__tsan_unaligned_read##bytes, check_access, bytes, false) \
  EMULATOR_ACCESS(__tsan_unaligned_write##bytes, check_access, bytes, true)
EMULATOR_ACCESSES(1)
EMULATOR_ACCESSES(2)
EMULATOR_ACCESSES(4)
EMULATOR_ACCESSES(8)
EMULATOR_ACCESSES(16)
EMULATOR_HOOK __tsan_read_range(void* p, size_t bytes) {
  if (!emulator::checked()) return;
  emulator::check_access(p, uint32_t(bytes), false, emulator::Site::instruction(__builtin_return_address(0)));
}
EMULATOR_HOOK __tsan_write_range(void* p, size_t bytes) {
  if (!emulator::checked()) return;
  emulator::check_access(p, uint32_t(bytes), true, emulator::Site::instruction(__builtin_return_address(0)));
}
EMULATOR_HOOK __tsan_init() {}
EMULATOR_HOOK __tsan_func_entry(void*) {}
EMULATOR_HOOK __tsan_func_exit() {}
EMULATOR_HOOK __tsan_vptr_update(void**, void*) {}
