// Checked mode: for every two bytes of memory, which threads wrote and read them last; and what follows for the next access.
#pragma once
#include "memory.h"
#include "state.h"

namespace emulator {

// What asynchronous operations have to do with a cell of shared memory.
enum CellFlag : uint8_t {
  kInitialized = 1,
  kInFlight = 2,      // a copy into it has been issued and not been waited for
  kGenericProxy = 4,  // written by a thread: needs a proxy fence before the copy engine or wgmma reads it
  kAtomic = 8,        // written by an atomic: others may follow without order
};

struct SharedCell {
  Stamp write;
  uint32_t readers;  // a list of those since the last write; valid in this epoch
  uint32_t readers_epoch;
  Site write_site;
  uint8_t flags, written;  // of its two bytes, those that the last write wrote
  bool byte_reads;         // by single bytes, whose readers are not told apart
  uint16_t async_readers;  // operations in flight that read it
  Site async_site;
};

struct GlobalCell {
  uint32_t block;  // that wrote, by its linear index
  Stamp write;
  uint32_t readers;
  uint8_t bytes;  // written by it, of the two
  bool byte_reads, written, atomic, by_engine;
  Site write_site;
};

constexpr uint8_t kBothBytes = 3;
// Which of a cell's two bytes an access touches; wider ones are taken to touch both.
inline uint8_t bytes_touched(uintptr_t address, uint32_t bytes) {
  return bytes == 1 ? uint8_t(1u << address % 2) : kBothBytes;
}

// Reports an access that collides with an earlier one.
void found(char const* kind, char const* what, Site site, char const* buffer, size_t offset, Stamp other,
           Site other_site);

void start_shadow(Block& starting);  // fresh shared memory
void reset_cells(Buffer& buffer);    // a new launch; what was written stays written
void start_launch_shadow();

// All threads of the block have met: no earlier read can race with a later write.
void forget_shared_reads();

// The running thread accesses shared memory at a shared address that lies inside the block's. Does nothing unless checked.
void check_shared(uint32_t address, uint32_t bytes, bool writes, Site site);
// The same for an operation on other hardware, on behalf of the running thread.
void check_shared_async_read(uint32_t address, uint32_t bytes, Site site);
void check_shared_async_write(Block& owner, uint32_t address, uint32_t bytes, Stamp agent, Site site);
void begin_async_read(uint32_t address, uint32_t bytes, Site site);
void end_async_read(uint32_t address, uint32_t bytes);
// A copy to block `to`, or a product of block `to`, of which `copy` is the stamp: it reads until it is done, and what is
// ordered after that is ordered after the read.
void begin_block_read(uint32_t address, uint32_t bytes, uint32_t to, Stamp copy, Site site);
void end_block_read(Block& source, uint32_t address, uint32_t bytes);
// Whether nothing has been written there since.
bool is_last_write(Block& owner, uint32_t address, Stamp write);
void land_async_write(Block& owner, uint32_t address, uint32_t bytes);
// cp.async of the running thread, which lands when that thread waits for it.
void begin_copy(uint32_t address, uint32_t bytes, Site site);
void land_copy(uint32_t address, uint32_t bytes, Site site);

void check_shared_atomic(uint32_t address, uint32_t bytes, Site site);

// A global address in or around a buffer.
void check_global(uintptr_t address, uint32_t bytes, bool writes, bool atomic, Site site);

// Any address that a thread accesses; those that are no memory of the kernel's are ignored.
void check_access(void const* p, uint32_t bytes, bool writes, Site site);
void check_aligned_access(void const* p, uint32_t bytes, bool writes, Site site);
// By the copy engine, of global memory.
void check_engine_read(void const* p, uint32_t bytes, Site site);
void check_atomic(void const* p, uint32_t bytes, bool writes, Site site);

}  // namespace emulator
