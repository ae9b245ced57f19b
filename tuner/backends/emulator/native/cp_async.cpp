// cp.async: before its wait a copy may or may not have happened; the launch options decide.
#include <cstring>

#include "fault.h"
#include "memory.h"
#include "report.h"
#include "shadow.h"

namespace emulator {

namespace {

void perform(AsyncCopy const& copy) {
  unsigned char* const dst = block->shared.base + (copy.dst - kSharedBase);
  operation_site = copy.site;
  if (copy.src_bytes) std::memcpy(dst, copy.src, size_t(copy.src_bytes));
  operation_site = {};
  std::memset(dst + copy.src_bytes, 0, size_t(copy.bytes - copy.src_bytes));
}

void check_source(AsyncCopy const& copy) {
  if (copy.src_bytes < 0 || copy.src_bytes > copy.bytes) {
    report("cp_async", copy.site, "cp_async of %d bytes out of %d", copy.src_bytes, copy.bytes);
    stop();
  }
  if (copy.src_bytes && reinterpret_cast<uintptr_t>(copy.src) % uintptr_t(copy.bytes)) {
    report("misaligned", copy.site, "cp_async: the global address is no multiple of %d", copy.bytes);
    stop();
  }
}

bool happens_at_issue() {
  Timing const timing = grid.options.timing;
  return timing == Timing::early || (timing == Timing::random && random_below(2));
}

}  // namespace

void cp_async(uint32_t dst, void const* src, int bytes, int src_bytes, Site site) {
  AsyncCopy copy{dst, src, bytes, src_bytes, happens_at_issue(), site};
  unsigned char* const target = shared_pointer(dst, uint32_t(bytes), uint32_t(bytes), "cp_async", site);
  check_source(copy);
  counters.cp_async_bytes += uint64_t(bytes);
  if (checked()) {
    begin_copy(dst, uint32_t(bytes), site);
    if (src_bytes) check_access(src, uint32_t(src_bytes), false, site);
  }
  if (copy.done)
    perform(copy);
  else
    std::memset(target, 0xff, size_t(bytes));
  if (!copy.done || checked()) self()->open_copies.push_back(copy);
}

void cp_async_commit() {
  Thread* thread = self();
  thread->copy_groups.push_back(std::move(thread->open_copies));
  thread->open_copies.clear();
}

void cp_async_wait(int groups_in_flight) {
  auto& groups = self()->copy_groups;
  while (int(groups.size()) > groups_in_flight) {
    for (AsyncCopy const& copy : groups.front()) {
      if (!copy.done) perform(copy);
      land_copy(copy.dst, uint32_t(copy.bytes), copy.site);
    }
    groups.erase(groups.begin());
  }
}

}  // namespace emulator
