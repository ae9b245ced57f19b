// Memory with guard pages and poison: unwritten memory is NaN in every floating-point type.
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "report.h"
#include "shadow.h"

namespace emulator {

namespace {

size_t const page = size_t(sysconf(_SC_PAGESIZE));  // 4 to 64 KB
constexpr size_t kGuard = 64 << 10;  // on either side, so that a stride beyond the edge still faults
constexpr size_t kSharedMap = 512 << 10;
constexpr uint8_t kPoison = 0xff;
constexpr uint8_t kCanary = 0xa5;

unsigned char* reserve(size_t bytes) {
  void* map = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return map == MAP_FAILED ? nullptr : static_cast<unsigned char*>(map);
}

std::vector<Buffer*> by_address;  // sorted, because a process may hold hundreds of buffers that a launch does not use
uintptr_t global_begin = ~uintptr_t(0), global_end;

// The first buffer that starts after an address.
std::vector<Buffer*>::iterator behind(uintptr_t address) {
  return std::upper_bound(by_address.begin(), by_address.end(), address,
                          [](uintptr_t at, Buffer const* buffer) { return at < buffer->map_begin; });
}

void update_global_range() {
  global_begin = by_address.empty() ? ~uintptr_t(0) : by_address.front()->map_begin;
  global_end = by_address.empty() ? 0 : by_address.back()->map_end;
}

bool intact(uintptr_t begin, uintptr_t end) {
  for (uintptr_t address = begin; address < end; address++)
    if (*reinterpret_cast<uint8_t const*>(address) != kCanary) return false;
  return true;
}

void check_canaries(Buffer const& buffer) {
  if (is_known("out_of_bounds", buffer.name)) return;
  if (!intact(buffer.map_begin + kGuard, buffer.begin))
    set_place(report("out_of_bounds", Site(), "bytes before global buffer %s were overwritten", buffer.name),
              buffer.name, -1);
  if (!intact(buffer.end, buffer.map_end - kGuard))
    set_place(report("out_of_bounds", Site(), "bytes behind global buffer %s were overwritten", buffer.name),
              buffer.name, int64_t(buffer.end - buffer.begin));
}

}  // namespace

// ---- shared

void map_shared(SharedMemory& memory, uint32_t bytes) {
  if (!memory.map) memory.map = reserve(kSharedMap);
  if (memory.base && memory.size == bytes) return;
  unsigned char* const end = memory.map + kSharedMap - kGuard;
  size_t const data = round_up(bytes, 1024), window = std::max(round_up(data, page), page);
  mprotect(memory.map, kSharedMap, PROT_NONE);
  mprotect(end - window, window, PROT_READ | PROT_WRITE);
  memory.base = end - data;
  memory.size = bytes;
}

void poison_shared(SharedMemory const& memory) {
  std::memset(memory.base, kPoison, memory.size);
  std::memset(memory.base + memory.size, kCanary, round_up(memory.size, 1024) - memory.size);
}

void check_shared_canary(SharedMemory const& memory) {
  if (is_known("out_of_bounds", "shared")) return;
  auto const end = reinterpret_cast<uintptr_t>(memory.base) + memory.size;
  if (!intact(end, end + round_up(memory.size, 1024) - memory.size))
    set_place(report("out_of_bounds", Site(), "bytes behind the %u of shared memory were overwritten", memory.size),
              "shared", memory.size);
}

bool in_shared_map(SharedMemory const& memory, uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(memory.map) < kSharedMap;
}

unsigned char* dynamic_shared() { return block->shared.base; }

uint32_t shared_address(void const* p, Site site) {
  ptrdiff_t const offset = static_cast<unsigned char const*>(p) - block->shared.base;
  if (offset >= 0 && offset <= ptrdiff_t(block->shared.size)) return kSharedBase + uint32_t(offset);
  report("out_of_bounds", site, "shared_address of a pointer outside shared memory");
  stop();
}

unsigned char* shared_pointer(uint32_t address, uint32_t bytes, uint32_t alignment, char const* what, Site site) {
  uint32_t const offset = address - kSharedBase, size = block->shared.size;
  if (bytes > size || offset > size - bytes) {
    set_place(report("out_of_bounds", site, "%s: %u bytes at shared offset %d of %u", what, bytes, int(offset), size),
              "shared", int32_t(offset));
    stop();
  }
  if (address % alignment) {
    set_place(report("misaligned", site, "%s: shared offset %u is no multiple of %u", what, offset, alignment),
              "shared", offset);
    stop();
  }
  return block->shared.base + offset;
}

// ---- global

std::vector<Buffer*> buffers;
static Buffer* last_found;

Buffer* find_buffer(uintptr_t address) {
  auto const holds = [=](Buffer const* buffer) {
    return address - buffer->map_begin < buffer->map_end - buffer->map_begin;
  };
  if (last_found && holds(last_found)) return last_found;
  auto const next = behind(address);
  return next == by_address.begin() || !holds(next[-1]) ? nullptr : last_found = next[-1];
}

bool in_global_range(uintptr_t address) { return address - global_begin < global_end - global_begin; }

void protect_buffers() {
  for (Buffer* buffer : buffers) {
    if (!buffer->writable)
      mprotect(reinterpret_cast<void*>(buffer->map_begin + kGuard), buffer->map_end - buffer->map_begin - 2 * kGuard,
               PROT_READ);
    else if (checked())
      reset_cells(*buffer);
  }
}

void release_buffers() {
  for (Buffer* buffer : buffers) {
    if (!buffer->writable)
      mprotect(reinterpret_cast<void*>(buffer->map_begin + kGuard), buffer->map_end - buffer->map_begin - 2 * kGuard,
               PROT_READ | PROT_WRITE);
    check_canaries(*buffer);
  }
}

// Poisoned memory of `bytes`, whose end, or else whose start, borders on a guard page (within 16 bytes); null: out of
// memory.
extern "C" EMULATOR_API void* emulator_allocate(size_t bytes, char const* name, int writable, int initialized,
                                                int guard_end) {
  size_t const window = std::max(round_up(round_up(bytes, 16), page), page);
  unsigned char* const map = reserve(window + 2 * kGuard);
  if (!map || mprotect(map + kGuard, window, PROT_READ | PROT_WRITE)) return nullptr;
  auto const first = reinterpret_cast<uintptr_t>(map) + kGuard;
  Buffer* buffer = new Buffer();
  std::snprintf(buffer->name, sizeof buffer->name, "%s", name);
  buffer->begin = guard_end ? first + window - round_up(bytes, 16) : first;
  buffer->end = buffer->begin + bytes;
  buffer->map_begin = reinterpret_cast<uintptr_t>(map);
  buffer->map_end = first + window + kGuard;
  buffer->writable = writable;
  buffer->initialized = initialized;
  std::memset(reinterpret_cast<void*>(first), kCanary, buffer->begin - first);
  std::memset(reinterpret_cast<void*>(buffer->begin), kPoison, bytes);
  std::memset(reinterpret_cast<void*>(buffer->end), kCanary, first + window - buffer->end);
  buffers.push_back(buffer);
  by_address.insert(behind(buffer->map_begin), buffer);
  update_global_range();
  return reinterpret_cast<void*>(buffer->begin);
}

extern "C" EMULATOR_API void emulator_free(void* data) {
  for (size_t i = 0; i < buffers.size(); i++) {
    Buffer* const buffer = buffers[i];
    if (buffer->begin != reinterpret_cast<uintptr_t>(data)) continue;
    munmap(reinterpret_cast<void*>(buffer->map_begin), buffer->map_end - buffer->map_begin);
    buffers.erase(buffers.begin() + ptrdiff_t(i));
    by_address.erase(behind(buffer->map_begin) - 1);
    delete buffer;
    last_found = nullptr;
    update_global_range();
    return;
  }
}

}  // namespace emulator
