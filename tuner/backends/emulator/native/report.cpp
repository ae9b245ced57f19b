// Findings and counters of the current launch.
#include "report.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "fiber.h"
#include "state.h"

namespace emulator {

Counters counters;

namespace {
constexpr int kMaxFindings = 64;
Finding findings[kMaxFindings];
int finding_count;

Finding* find(char const* kind, Site site) {
  for (int i = 0; i < finding_count; i++)
    if (findings[i].site.bits == site.bits && !std::strcmp(findings[i].kind, kind)) return &findings[i];
  return nullptr;
}
}  // namespace

Finding* report(char const* kind, Site site, char const* format, ...) {
  if (Finding* seen = find(kind, site)) {
    seen->count++;
    return nullptr;
  }
  if (finding_count == kMaxFindings) return nullptr;
  Finding* finding = &findings[finding_count++];
  *finding = {kind,
              {block_index.x, block_index.y, block_index.z},
              current ? int32_t(current->linear) : -1,
              -1,
              site,
              Site(),
              "",
              0,
              1,
              ""};
  va_list values;
  va_start(values, format);
  std::vsnprintf(finding->message, sizeof finding->message, format, values);
  va_end(values);
  return finding;
}

void set_place(Finding* finding, char const* buffer, int64_t offset) {
  if (!finding) return;
  std::snprintf(finding->buffer, sizeof finding->buffer, "%s", buffer);
  finding->offset = offset;
}

bool is_known(char const* kind, char const* buffer) {
  for (int i = 0; i < finding_count; i++)
    if (!std::strcmp(findings[i].kind, kind) && !std::strcmp(findings[i].buffer, buffer)) return true;
  return false;
}

void clear_findings() { finding_count = 0; }

void stop() {
  grid.stopped = true;
  leave_fiber();
}

void trap(char const* reason, Site site) {
  report("trap", site, "%s", reason);
  stop();
}

extern "C" EMULATOR_API Finding const* emulator_findings(int* count) {
  *count = finding_count;
  return findings;
}

}  // namespace emulator
