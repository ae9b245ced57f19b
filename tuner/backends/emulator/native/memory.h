// Memory with edges: shared memory that ends at a guard page, global buffers between guard pages and canaries.
#pragma once
#include <vector>

#include "state.h"

namespace emulator {

// A shared address is an offset from here: 0 is no address.
constexpr uint32_t kSharedBase = 1024;

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

struct GlobalCell;

struct Buffer {
  char name[32];
  uintptr_t begin, end;          // the data
  uintptr_t map_begin, map_end;  // with canaries and guard pages
  bool writable;
  bool initialized;               // holds data before the launch
  std::vector<GlobalCell> cells;  // checked mode, writable buffers: one for two bytes
};

extern std::vector<Buffer*> buffers;
Buffer* find_buffer(uintptr_t address);  // that it lies in or around; null: none
bool in_global_range(uintptr_t address);

void map_shared(SharedMemory& memory, uint32_t bytes);
void poison_shared(SharedMemory const& memory);
void check_shared_canary(SharedMemory const& memory);
void protect_buffers();
void release_buffers();  // after the launch: writable again, canaries checked
bool in_shared_map(SharedMemory const& memory, uintptr_t address);

// The memory behind a shared address; what lies outside the block's, or is not aligned, ends the launch.
unsigned char* shared_pointer(uint32_t address, uint32_t bytes, uint32_t alignment, char const* what, Site site);

}  // namespace emulator
