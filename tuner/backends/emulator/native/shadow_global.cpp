// Checks of global memory: bounds, writes to inputs, uninitialised reads, races within and between blocks.
#include "fault.h"
#include "readers.h"
#include "report.h"
#include "shadow.h"

namespace emulator {

namespace {

ReaderLists global_readers;

void found_global(char const* kind, char const* what, Site site, Buffer const& buffer, size_t cell) {
  GlobalCell const& touched = buffer.cells[cell];
  found(kind, what, site, buffer.name, cell * 2, touched.write, touched.write_site);
}

void read_global(Buffer& buffer, size_t index, uint8_t touched, bool atomic, Site site) {
  GlobalCell& cell = buffer.cells[index];
  if (!cell.written && !buffer.initialized) {
    found_global("uninitialized_read", "global memory is read before it is written", site, buffer, index);
    cell.written = true;
  }
  if (cell.write.clock && cell.bytes & touched && !(atomic && cell.atomic) && !ordered_before(cell.block, cell.write, Access::write))
    found_global("race", "global read after write, and nothing orders them", site, buffer, index);
  if (atomic) return;  // a later atomic need not be ordered after it
  cell.readers = global_readers.add(cell.readers);
  cell.byte_reads |= touched != kBothBytes;
}

void write_global(Buffer& buffer, size_t index, uint8_t touched, bool atomic, Site site) {
  GlobalCell& cell = buffer.cells[index];
  if (cell.write.clock && cell.bytes & touched && !(atomic && cell.atomic) && !ordered_before(cell.block, cell.write, Access::write))
    found_global("race", "global write after write, and nothing orders them", site, buffer, index);
  bool const told_apart = !cell.byte_reads || touched == kBothBytes;
  if (told_apart && global_readers.unordered(cell.readers))
    found_global("race", "global write after read, and nothing orders them", site, buffer, index);
  cell = {block->linear, Stamp{current->linear, self()->clock.now}, 0, touched, false, true, atomic, operation_site.bits != 0, site};
}

// The buffer that contains an access; null, after a report, if there is none.
Buffer* checked_buffer(uintptr_t address, uint32_t bytes, bool writes, Site site) {
  Buffer* buffer = find_buffer(address);
  if (!buffer) return nullptr;
  if (address < buffer->begin || address + bytes > buffer->end) {
    auto const offset = int64_t(address - buffer->begin);
    set_place(report("out_of_bounds", site, "%s of %u bytes at offset %lld of %s, which has %lld",
                     writes ? "write" : "read", bytes, static_cast<long long>(offset), buffer->name,
                     static_cast<long long>(buffer->end - buffer->begin)),
              buffer->name, offset);
    return nullptr;
  }
  if (writes && !buffer->writable) {
    set_place(report("read_only", site, "write to the input %s", buffer->name), buffer->name,
              int64_t(address - buffer->begin));
    return nullptr;
  }
  return buffer;
}

}  // namespace

// A bulk copy must not read data that threads of this launch wrote. It may read what bulk copies wrote, after an
// acquire only behind a proxy fence.
void check_engine_read(void const* p, uint32_t bytes, Site site) {
  auto const address = reinterpret_cast<uintptr_t>(p);
  Buffer* buffer = find_buffer(address);
  if (!buffer || buffer->cells.empty()) return;
  for (size_t index = (address - buffer->begin) / 2; index <= (address + bytes - 1 - buffer->begin) / 2; index++) {
    GlobalCell const& cell = buffer->cells[index];
    if (cell.write.clock && (!cell.by_engine || self()->unfenced_acquire))
      return found_global("proxy_fence", "the copy engine reads global memory that this launch wrote, unfenced", site,
                          *buffer, index);
  }
}

void start_launch_shadow() { global_readers.clear(); }

void reset_cells(Buffer& buffer) {
  for (GlobalCell& cell : buffer.cells) {
    cell.write = {0, 0};
    cell.readers = 0;
  }
}

void check_global(uintptr_t address, uint32_t bytes, bool writes, bool atomic, Site site) {
  Buffer* buffer = checked_buffer(address, bytes, writes, site);
  if (!buffer) return;
  (writes ? counters.global_write_bytes : counters.global_read_bytes) += bytes;
  if (!buffer->writable) return;
  // Allocated when a kernel first touches it: a process may hold large buffers that this launch does not use.
  if (buffer->cells.empty()) buffer->cells.resize((buffer->end - buffer->begin + 1) / 2);
  uint8_t const touched = bytes_touched(address - buffer->begin, bytes);
  size_t const first = (address - buffer->begin) / 2, last = (address + bytes - 1 - buffer->begin) / 2;
  for (size_t index = first; index <= last; index++) {
    if (writes)
      write_global(*buffer, index, touched, atomic, site);
    else
      read_global(*buffer, index, touched, atomic, site);
  }
}

}  // namespace emulator
