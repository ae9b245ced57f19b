// Checks of shared memory: uninitialised reads, races, copies in flight, missing proxy fences.
#include "shadow.h"

#include <cstdio>

#include "cluster.h"
#include "readers.h"
#include "report.h"

namespace emulator {

void found(char const* kind, char const* what, Site site, char const* buffer, size_t offset, Stamp other,
           Site other_site) {
  Finding* finding = report(kind, site, "%s", what);
  if (!finding) return;
  set_place(finding, buffer, int64_t(offset));
  finding->other_thread = other.clock && int(other.thread) < block->thread_count ? int32_t(other.thread) : -1;
  finding->other_site = other_site;
}

namespace {

ReaderLists shared_readers;
uint32_t shared_epoch;

size_t cell_offset(Block const& owner, SharedCell const& cell) { return size_t(&cell - owner.cells.data()) * 2; }

// `cell` belongs to the owner's shared memory; `other` is an earlier access.
void found_in(Block const& owner, char const* kind, char const* what, Site site, SharedCell const& cell, Stamp other,
              Site other_site) {
  char name[32] = "shared";
  if (&owner != block) std::snprintf(name, sizeof name, "shared of rank %u", rank_of(owner));
  found(kind, what, site, name, cell_offset(owner, cell), other, other_site);
}

void found_shared(char const* kind, char const* what, Site site, SharedCell const& cell) {
  found_in(*block, kind, what, site, cell, cell.write, cell.write_site);
}

// A copy that another block has seen land and then publishes is complete, like a read and unlike a thread's write.
bool write_ordered(Block const& owner, Stamp write) {
  Thread const* thread = self();
  if (&owner == block) return knows(thread->clock, thread->linear, write);
  bool const copied = int(write.thread) >= owner.thread_count;
  return knows_foreign(thread->clock, owner.linear, write, copied ? Access::read : Access::write);
}

void check_initialized(SharedCell& cell, Site site) {
  if (cell.flags & kInitialized) return;
  found_shared("uninitialized_read", "shared memory is read before it is written", site, cell);
  cell.flags |= kInitialized;
}

void check_read(SharedCell& cell, uint8_t touched, Site site) {
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
}

void read_cell(SharedCell& cell, uint8_t touched, Site site) {
  check_read(cell, touched, site);
  cell.readers = shared_readers.add(cell.readers);
  cell.byte_reads |= touched != kBothBytes;
}

void check_fenced(SharedCell const& cell, Site site) {
  if (cell.flags & kGenericProxy && !knows_fenced(self()->clock, cell.write))
    found_shared("proxy_fence", "the copy engine or a tensor core reads what a thread wrote without fence_proxy_async", site,
                 cell);
}

void check_write(Block const& owner, SharedCell& cell, uint8_t touched, Site site, bool atomic = false) {
  if (cell.flags & kInFlight)
    found_in(owner, "in_flight", "shared memory is written while a copy into it is in flight", site, cell, cell.write,
             cell.write_site);
  else if (cell.written & touched && !(atomic && cell.flags & kAtomic) && !write_ordered(owner, cell.write))
    found_in(owner, "race", "write after write, and nothing orders them", site, cell, cell.write, cell.write_site);
  if (cell.async_readers)
    found_in(owner, "in_flight", "shared memory is written while an asynchronous read of it is in flight", site, cell,
             {}, cell.async_site);
  if (cell.readers_epoch != shared_epoch || (cell.byte_reads && touched != kBothBytes)) return;
  if (Reader const* reader = shared_readers.unordered(cell.readers))
    found_in(owner, "race", "write after read, and nothing orders them", site, cell, reader->stamp, Site());
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
void each_cell(Block& owner, uint32_t address, uint32_t bytes, F visit) {
  uint32_t const offset = address - kSharedBase;
  SharedCell* cell = &owner.cells[offset / 2];
  SharedCell* const end = &owner.cells[(offset + bytes - 1) / 2] + 1;
  for (; cell != end; cell++) visit(*cell);
}

template <class F>
void each_cell(uint32_t address, uint32_t bytes, F visit) {
  each_cell(*block, address, bytes, visit);
}

}  // namespace

void start_shadow(Block& starting) {
  forget_shared_reads();
  SharedCell fresh{};
  fresh.readers_epoch = shared_epoch;
  starting.cells.assign((starting.shared.size + 1) / 2, fresh);
}

void forget_shared_reads() {
  if (grid.resident.size() > 1) return;  // other blocks' lists are in the same arena
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
    check_write(*block, cell, touched, site);
    write_cell(cell, touched, stamp, kInitialized | kGenericProxy, site);
  });
}

void check_shared_async_read(uint32_t address, uint32_t bytes, Site site) {
  if (!checked()) return;
  each_cell(address, bytes, [=](SharedCell& cell) {
    read_cell(cell, kBothBytes, site);
    check_fenced(cell, site);
  });
}

void check_shared_async_write(Block& owner, uint32_t address, uint32_t bytes, Stamp agent, Site site) {
  if (!checked()) return;
  each_cell(owner, address, bytes, [&](SharedCell& cell) {
    check_write(owner, cell, kBothBytes, site);
    write_cell(cell, kBothBytes, agent, kInitialized | kInFlight, site);
  });
}

void land_async_write(Block& owner, uint32_t address, uint32_t bytes) {
  if (checked()) each_cell(owner, address, bytes, [](SharedCell& cell) { cell.flags &= uint8_t(~kInFlight); });
}

bool is_last_write(Block& owner, uint32_t address, Stamp write) {
  Stamp const last = owner.cells[(address - kSharedBase) / 2].write;
  return last.thread == write.thread && last.clock == write.clock;
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

void begin_block_read(uint32_t address, uint32_t bytes, uint32_t to, Stamp copy, Site site) {
  if (!checked()) return;
  each_cell(address, bytes, [=](SharedCell& cell) {
    check_read(cell, kBothBytes, site);
    check_fenced(cell, site);
    cell.readers = shared_readers.add(cell.readers, to, copy);
    cell.async_readers++;
    cell.async_site = site;
  });
}

void end_block_read(Block& source, uint32_t address, uint32_t bytes) {
  if (checked()) each_cell(source, address, bytes, [](SharedCell& cell) { cell.async_readers--; });
}

void begin_copy(uint32_t address, uint32_t bytes, Site site) {
  if (!checked()) return;
  Stamp const stamp = own_stamp();
  each_cell(address, bytes, [=](SharedCell& cell) {
    check_write(*block, cell, kBothBytes, site);
    write_cell(cell, kBothBytes, stamp, kInitialized | kInFlight, site);
  });
}

void land_copy(uint32_t address, uint32_t bytes, Site site) {
  if (!checked()) return;
  Stamp const stamp = own_stamp();
  each_cell(address, bytes,
            [=](SharedCell& cell) { write_cell(cell, kBothBytes, stamp, kInitialized | kGenericProxy, site); });
}

void check_shared_atomic(uint32_t address, uint32_t bytes, Site site) {
  Stamp const stamp = own_stamp();
  each_cell(address, bytes, [=](SharedCell& cell) {
    check_initialized(cell, site);
    check_write(*block, cell, kBothBytes, site, true);
    write_cell(cell, kBothBytes, stamp, kInitialized | kGenericProxy | kAtomic, site);
  });
}

}  // namespace emulator
