// Checked mode: the last writer and readers of every two bytes of memory, and the checks of the next access.
#pragma once
#include "memory.h"
#include "state.h"

namespace emulator {

// Asynchronous operations on a cell of shared memory.
enum CellFlag : uint8_t {
  kInitialized = 1,
  kInFlight = 2,  // a copy into it was issued and has not been waited for
  kGenericProxy = 4,  // written by a thread: needs a proxy fence before the async proxy reads it
  kAtomic = 8,  // written by an atomic: further atomics need no order
};

struct SharedCell {
  Stamp write;
  uint32_t readers;  // list of the reads since the last write; valid in this epoch
  uint32_t readers_epoch;
  Site write_site;
  uint8_t flags, written;  // written: which of its two bytes the last write covered
  bool byte_reads;  // read by single bytes, whose readers are not distinguished
  uint16_t async_readers;  // operations in flight that read it
  Site async_site;
};

struct GlobalCell {
  uint32_t block;  // linear index of the writing block
  Stamp write;
  uint32_t readers;
  uint8_t bytes;  // which of the two bytes it wrote
  bool byte_reads, written, atomic, by_engine;
  Site write_site;
};

constexpr uint8_t kBothBytes = 3;
// The bytes of a cell that an access touches; accesses wider than one byte are assumed to touch both.
inline uint8_t bytes_touched(uintptr_t address, uint32_t bytes) {
  return bytes == 1 ? uint8_t(1u << address % 2) : kBothBytes;
}

// Reports a conflict with an earlier access.
void found(char const* kind, char const* what, Site site, char const* buffer, size_t offset, Stamp other,
           Site other_site);

void start_shadow(Block& starting);  // for new shared memory
void reset_cells(Buffer& buffer);  // at the start of a launch; written bytes stay initialised
void start_launch_shadow();

// All threads of the block have synchronised: no earlier read can race with a later write.
void forget_shared_reads();

// The running thread accesses shared memory at an in-bounds shared address. Does nothing unless checked.
void check_shared(uint32_t address, uint32_t bytes, bool writes, Site site);
// The same for an asynchronous operation on behalf of the running thread.
void check_shared_async_read(uint32_t address, uint32_t bytes, Site site);
void check_shared_async_write(Block& owner, uint32_t address, uint32_t bytes, Stamp agent, Site site);
void begin_async_read(uint32_t address, uint32_t bytes, Site site);
void end_async_read(uint32_t address, uint32_t bytes);
// A copy to block `to`, or a product of block `to`, with stamp `copy`: it reads until its completion, so accesses
// ordered after the completion are ordered after the read.
void begin_block_read(uint32_t address, uint32_t bytes, uint32_t to, Stamp copy, Site site);
void end_block_read(Block& source, uint32_t address, uint32_t bytes);
// Whether the bytes have not been written since.
bool is_last_write(Block& owner, uint32_t address, Stamp write);
void land_async_write(Block& owner, uint32_t address, uint32_t bytes);
// cp.async of the running thread, which lands when that thread waits for it.
void begin_copy(uint32_t address, uint32_t bytes, Site site);
void land_copy(uint32_t address, uint32_t bytes, Site site);

void check_shared_atomic(uint32_t address, uint32_t bytes, Site site);

// A global address in or near a buffer.
void check_global(uintptr_t address, uint32_t bytes, bool writes, bool atomic, Site site);

// Any address that a thread accesses; addresses outside the kernel's memory are ignored.
void check_access(void const* p, uint32_t bytes, bool writes, Site site);
void check_aligned_access(void const* p, uint32_t bytes, bool writes, Site site);
// An access to global memory by a bulk copy.
void check_engine_read(void const* p, uint32_t bytes, Site site);
void check_atomic(void const* p, uint32_t bytes, bool writes, Site site);

}  // namespace emulator
