// The checker: bounds, uninitialised reads, races by vector clocks, copies in flight, missing proxy fences.
#include "shadow.h"

#include <algorithm>
#include <cstring>

#include "report.h"

namespace emulator {

namespace {

// ---- readers: persistent lists, so that cells with the same history share one

struct Reader {
  uint32_t next;
  uint32_t block;
  Stamp stamp;
};

class ReaderLists {
 public:
  ReaderLists() { clear(); }
  void clear() {
    nodes_.resize(1);  // 0 is the empty list
    last_from_ = ~0u;
  }
  Reader const& operator[](uint32_t list) const { return nodes_[list]; }

  // `list` and the running thread, without those that its read covers.
  uint32_t add(uint32_t list) {
    Thread const* thread = self();
    Reader const reader{0, thread->block->linear, {thread->linear, thread->clock.now}};
    if (list == last_from_ && same(nodes_[last_to_], reader)) return last_to_;
    last_from_ = list;
    while (list && covered(nodes_[list])) list = nodes_[list].next;
    nodes_.push_back({list, reader.block, reader.stamp});
    return last_to_ = uint32_t(nodes_.size() - 1);
  }

  static bool covered(Reader const& reader) {
    Thread const* thread = self();
    return reader.block == thread->block->linear ? knows(thread->clock, thread->linear, reader.stamp)
                                                 : knows_foreign(thread->clock, reader.block, reader.stamp);
  }

 private:
  static bool same(Reader const& a, Reader const& b) {
    return a.block == b.block && a.stamp.thread == b.stamp.thread && a.stamp.clock == b.stamp.clock;
  }
  std::vector<Reader> nodes_;
  uint32_t last_from_, last_to_ = 0;
};

ReaderLists shared_readers, global_readers;
uint32_t shared_epoch;

// ---- findings

void found(char const* kind, char const* what, Site site, char const* buffer, size_t offset, Stamp other, Site other_site) {
  Finding* finding = report(kind, site, "%s", what);
  if (!finding) return;
  set_place(finding, buffer, int64_t(offset));
  finding->other_thread = other.clock && int(other.thread) < block->thread_count ? int32_t(other.thread) : -1;
  finding->other_site = other_site;
}

// ---- shared memory

size_t cell_offset(SharedCell const& cell) { return size_t(&cell - block->cells.data()) * 2; }

void found_shared(char const* kind, char const* what, Site site, SharedCell const& cell) {
  found(kind, what, site, "shared", cell_offset(cell), cell.write, cell.write_site);
}

constexpr uint8_t kBothBytes = 3;

// Which of a cell's two bytes an access touches; wider ones are taken to touch both.
uint8_t bytes_touched(uintptr_t address, uint32_t bytes) { return bytes == 1 ? uint8_t(1u << address % 2) : kBothBytes; }

void check_initialized(SharedCell& cell, Site site) {
  if (cell.flags & kInitialized) return;
  found_shared("uninitialized_read", "shared memory is read that nobody has written", site, cell);
  cell.flags |= kInitialized;
}

void read_cell(SharedCell& cell, uint8_t touched, Site site) {
  Thread const* thread = self();
  check_initialized(cell, site);
  if (cell.flags & kInFlight)
    found_shared("in_flight", "shared memory is read while a copy into it is in flight", site, cell);
  else if (cell.written & touched && !knows(thread->clock, thread->linear, cell.write))
    found_shared("race", "read after write, and nothing orders them", site, cell);
  if (cell.readers_epoch != shared_epoch) {
    cell.readers_epoch = shared_epoch;
    cell.readers = 0;
  }
  cell.readers = shared_readers.add(cell.readers);
  cell.byte_reads |= touched != kBothBytes;
}

void check_write(SharedCell& cell, uint8_t touched, Site site) {
  Thread const* thread = self();
  if (cell.flags & kInFlight)
    found_shared("in_flight", "shared memory is written while a copy into it is in flight", site, cell);
  else if (cell.written & touched && !knows(thread->clock, thread->linear, cell.write))
    found_shared("race", "write after write, and nothing orders them", site, cell);
  if (cell.async_readers)
    found("in_flight", "shared memory is written while an asynchronous read of it is in flight", site, "shared",
          cell_offset(cell), {}, cell.async_site);
  if (cell.readers_epoch != shared_epoch || (cell.byte_reads && touched != kBothBytes)) return;
  for (uint32_t list = cell.readers; list; list = shared_readers[list].next)
    if (!ReaderLists::covered(shared_readers[list])) {
      found("race", "write after read, and nothing orders them", site, "shared", cell_offset(cell),
            shared_readers[list].stamp, Site());
      return;
    }
}

void write_cell(SharedCell& cell, uint8_t touched, Stamp by, uint8_t flags, Site site) {
  cell.write = by;
  cell.written = touched;
  cell.byte_reads = false;
  cell.write_site = site;
  cell.flags = flags;
  cell.readers = 0;
  cell.readers_epoch = shared_epoch;
}

Stamp own_stamp() { return {current->linear, self()->clock.now}; }

template <class F>
void each_cell(uint32_t address, uint32_t bytes, F visit) {
  uint32_t const offset = address - kSharedBase;
  SharedCell* cell = &block->cells[offset / 2];
  SharedCell* const end = &block->cells[(offset + bytes - 1) / 2] + 1;
  for (; cell != end; cell++) visit(*cell);
}

}  // namespace

void start_launch_shadow() { global_readers.clear(); }

void start_shadow(Block& starting) {
  forget_shared_reads();
  SharedCell fresh{};
  fresh.readers_epoch = shared_epoch;
  starting.cells.assign((starting.shared.size + 1) / 2, fresh);
}

void forget_shared_reads() {
  if (grid.resident.size() > 1) return;  // other blocks' lists live in the same arena
  shared_epoch++;
  shared_readers.clear();
}

void check_shared(uint32_t address, uint32_t bytes, bool writes, Site site) {
  if (!checked()) return;
  uint8_t const touched = bytes_touched(address, bytes);
  if (!writes) {
    counters.shared_read_bytes += bytes;
    each_cell(address, bytes, [=](SharedCell& cell) { read_cell(cell, touched, site); });
    return;
  }
  counters.shared_write_bytes += bytes;
  Stamp const stamp = own_stamp();
  each_cell(address, bytes, [=](SharedCell& cell) {
    check_write(cell, touched, site);
    write_cell(cell, touched, stamp, kInitialized | kGenericProxy, site);
  });
}

void check_shared_async_read(uint32_t address, uint32_t bytes, Site site) {
  if (!checked()) return;
  each_cell(address, bytes, [=](SharedCell& cell) {
    read_cell(cell, kBothBytes, site);
    if (cell.flags & kGenericProxy && !knows_fenced(self()->clock, cell.write))
      found_shared("proxy_fence", "the copy engine or wgmma reads what a thread wrote without fence_proxy_async", site, cell);
  });
}

void check_shared_async_write(uint32_t address, uint32_t bytes, Stamp agent, Site site) {
  if (!checked()) return;
  each_cell(address, bytes, [=](SharedCell& cell) {
    check_write(cell, kBothBytes, site);
    write_cell(cell, kBothBytes, agent, kInitialized | kInFlight, site);
  });
}

void land_async_write(uint32_t address, uint32_t bytes) {
  if (checked()) each_cell(address, bytes, [](SharedCell& cell) { cell.flags &= uint8_t(~kInFlight); });
}

void begin_async_read(uint32_t address, uint32_t bytes, Site site) {
  if (!checked()) return;
  check_shared_async_read(address, bytes, site);
  each_cell(address, bytes, [=](SharedCell& cell) {
    cell.async_readers++;
    cell.async_site = site;
  });
}

void end_async_read(uint32_t address, uint32_t bytes) {
  if (!checked()) return;
  each_cell(address, bytes, [=](SharedCell& cell) {
    cell.async_readers--;
    cell.readers = shared_readers.add(cell.readers_epoch == shared_epoch ? cell.readers : 0);
    cell.readers_epoch = shared_epoch;
  });
}

void begin_copy(uint32_t address, uint32_t bytes, Site site) {
  if (!checked()) return;
  Stamp const stamp = own_stamp();
  each_cell(address, bytes, [=](SharedCell& cell) {
    check_write(cell, kBothBytes, site);
    write_cell(cell, kBothBytes, stamp, kInitialized | kInFlight, site);
  });
}

void land_copy(uint32_t address, uint32_t bytes, Site site) {
  if (!checked()) return;
  Stamp const stamp = own_stamp();
  each_cell(address, bytes, [=](SharedCell& cell) { write_cell(cell, kBothBytes, stamp, kInitialized | kGenericProxy, site); });
}

// ---- global memory

namespace {

bool ordered_before(uint32_t writer_block, Stamp stamp) { return ReaderLists::covered({0, writer_block, stamp}); }

void found_global(char const* kind, char const* what, Site site, Buffer const& buffer, size_t cell) {
  GlobalCell const& touched = buffer.cells[cell];
  found(kind, what, site, buffer.name, cell * 2, touched.write, touched.write_site);
}

void read_global(Buffer& buffer, size_t index, uint8_t touched, Site site) {
  GlobalCell& cell = buffer.cells[index];
  if (!cell.written && !buffer.initialized) {
    found_global("uninitialized_read", "global memory is read that nobody has written", site, buffer, index);
    cell.written = true;
  }
  if (cell.write.clock && cell.bytes & touched && !ordered_before(cell.block, cell.write))
    found_global("race", "global read after write, and nothing orders them", site, buffer, index);
  cell.readers = global_readers.add(cell.readers);
  cell.byte_reads |= touched != kBothBytes;
}

void write_global(Buffer& buffer, size_t index, uint8_t touched, bool atomic, Site site) {
  GlobalCell& cell = buffer.cells[index];
  if (cell.write.clock && cell.bytes & touched && !(atomic && cell.atomic) && !ordered_before(cell.block, cell.write))
    found_global("race", "global write after write, and nothing orders them", site, buffer, index);
  bool const told_apart = !cell.byte_reads || touched == kBothBytes;
  for (uint32_t list = told_apart ? cell.readers : 0; list; list = global_readers[list].next)
    if (!ReaderLists::covered(global_readers[list])) {
      found_global("race", "global write after read, and nothing orders them", site, buffer, index);
      break;
    }
  cell = {block->linear, own_stamp(), 0, touched, false, true, atomic, site};
}

// The buffer of an access that lies inside it; null, after a report, of one that does not.
Buffer* checked_buffer(uintptr_t address, uint32_t bytes, bool writes, Site site) {
  Buffer* buffer = find_buffer(address);
  if (!buffer) return nullptr;
  if (address < buffer->begin || address + bytes > buffer->end) {
    auto const offset = int64_t(address - buffer->begin);
    set_place(report("out_of_bounds", site, "%s of %u bytes at offset %lld of %s, which has %lld", writes ? "write" : "read",
                     bytes, static_cast<long long>(offset), buffer->name, static_cast<long long>(buffer->end - buffer->begin)),
              buffer->name, offset);
    return nullptr;
  }
  if (writes && !buffer->writable) {
    set_place(report("read_only", site, "write to the input %s", buffer->name), buffer->name, int64_t(address - buffer->begin));
    return nullptr;
  }
  return buffer;
}

void check_global(uintptr_t address, uint32_t bytes, bool writes, bool atomic, Site site) {
  Buffer* buffer = checked_buffer(address, bytes, writes, site);
  if (!buffer) return;
  (writes ? counters.global_write_bytes : counters.global_read_bytes) += bytes;
  if (!buffer->writable) return;
  uint8_t const touched = bytes_touched(address - buffer->begin, bytes);
  size_t const first = (address - buffer->begin) / 2, last = (address + bytes - 1 - buffer->begin) / 2;
  for (size_t index = first; index <= last; index++) {
    if (writes) write_global(*buffer, index, touched, atomic, site);
    else if (!atomic) read_global(*buffer, index, touched, site);
  }
}

void check_shared_generic(uintptr_t address, uint32_t bytes, bool writes, Site site) {
  auto const offset = ptrdiff_t(address - reinterpret_cast<uintptr_t>(block->shared.base));
  if (offset >= 0 && offset + ptrdiff_t(bytes) <= ptrdiff_t(block->shared.size)) {
    note_bank_access(uint32_t(offset), bytes, site);
    check_shared(kSharedBase + uint32_t(offset), bytes, writes, site);
    return;
  }
  set_place(report("out_of_bounds", site, "%s of %u bytes at shared offset %td of %u", writes ? "write" : "read", bytes, offset,
                   block->shared.size),
            "shared", offset);
}

}  // namespace

void reset_cells(Buffer& buffer) {
  size_t const count = (buffer.end - buffer.begin + 1) / 2;
  if (buffer.cells.size() != count) buffer.cells.assign(count, GlobalCell{});
  for (GlobalCell& cell : buffer.cells) {
    cell.write = {0, 0};
    cell.readers = 0;
  }
}

void check_access(void const* p, uint32_t bytes, bool writes, Site site) {
  auto const address = reinterpret_cast<uintptr_t>(p);
  if (in_shared_map(block->shared, address)) check_shared_generic(address, bytes, writes, site);
  else if (in_global_range(address)) check_global(address, bytes, writes, false, site);
}

// An access that the kernel's types promise to be aligned; in memory that the GPU has.
static void check_alignment(void const* p, uint32_t bytes, Site site) {
  auto const address = reinterpret_cast<uintptr_t>(p);
  if (address % bytes == 0) return;
  if (in_shared_map(block->shared, address))
    set_place(report("misaligned", site, "access of %u bytes at an address that is no multiple of it", bytes), "shared",
              int64_t(address - reinterpret_cast<uintptr_t>(block->shared.base)));
  else if (Buffer const* buffer = in_global_range(address) ? find_buffer(address) : nullptr)
    set_place(report("misaligned", site, "access of %u bytes at an address that is no multiple of it", bytes),
              buffer->name, int64_t(address - buffer->begin));
}

void check_aligned_access(void const* p, uint32_t bytes, bool writes, Site site) {
  check_alignment(p, bytes, site);
  check_access(p, bytes, writes, site);
}

void check_atomic(void const* p, uint32_t bytes, bool writes, Site site) {
  if (!checked()) return;
  auto const address = reinterpret_cast<uintptr_t>(p);
  if (in_global_range(address)) check_global(address, bytes, writes, true, site);
}

}  // namespace emulator

// ---- what -fsanitize=thread calls for every load and store of a kernel; its own library is not linked

#define EMULATOR_HOOK extern "C" EMULATOR_API void
#define EMULATOR_ACCESS(name, check, bytes, writes)                                                \
  EMULATOR_HOOK name(void* p) {                                                                    \
    emulator::check(p, bytes, writes, emulator::Site::instruction(__builtin_return_address(0)));   \
  }
#define EMULATOR_ACCESSES(bytes)                                                  \
  EMULATOR_ACCESS(__tsan_read##bytes, check_aligned_access, bytes, false)         \
  EMULATOR_ACCESS(__tsan_write##bytes, check_aligned_access, bytes, true)         \
  EMULATOR_ACCESS(__tsan_unaligned_read##bytes, check_access, bytes, false)       \
  EMULATOR_ACCESS(__tsan_unaligned_write##bytes, check_access, bytes, true)
EMULATOR_ACCESSES(1)
EMULATOR_ACCESSES(2)
EMULATOR_ACCESSES(4)
EMULATOR_ACCESSES(8)
EMULATOR_ACCESSES(16)
EMULATOR_HOOK __tsan_read_range(void* p, size_t bytes) {
  emulator::check_access(p, uint32_t(bytes), false, emulator::Site::instruction(__builtin_return_address(0)));
}
EMULATOR_HOOK __tsan_write_range(void* p, size_t bytes) {
  emulator::check_access(p, uint32_t(bytes), true, emulator::Site::instruction(__builtin_return_address(0)));
}
EMULATOR_HOOK __tsan_init() {}
EMULATOR_HOOK __tsan_func_entry(void*) {}
EMULATOR_HOOK __tsan_func_exit() {}
EMULATOR_HOOK __tsan_vptr_update(void**, void*) {}
