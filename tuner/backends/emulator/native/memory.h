// Bounds-checked memory: shared memory that ends at a guard page, global buffers between guard pages and canaries.
#pragma once
#include <vector>

#include "state.h"

namespace emulator {

// A shared address is an offset from here; 0 is not a valid address.
constexpr uint32_t kSharedBase = 1024;

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

struct GlobalCell;

struct Buffer {
  char name[32];
  uintptr_t begin, end;          // the data
  uintptr_t map_begin, map_end;  // including canaries and guard pages
  bool writable;
  bool initialized;               // holds data before the launch
  std::vector<GlobalCell> cells;  // checked mode, writable buffers: one cell per two bytes
};

extern std::vector<Buffer*> buffers;
Buffer* find_buffer(uintptr_t address);  // the buffer that contains or surrounds the address; null: none
bool in_global_range(uintptr_t address);

void map_shared(SharedMemory& memory, uint32_t bytes);
void poison_shared(SharedMemory const& memory);
void check_shared_canary(SharedMemory const& memory);
void protect_buffers();
void release_buffers();  // after the launch: makes buffers writable and checks canaries
bool in_shared_map(SharedMemory const& memory, uintptr_t address);

// The memory at a shared address; an out-of-bounds or misaligned address ends the launch.
unsigned char* shared_pointer(uint32_t address, uint32_t bytes, uint32_t alignment, char const* what, Site site);

}  // namespace emulator
