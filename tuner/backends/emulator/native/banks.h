// Bank conflicts of per-thread loads and stores, in checked mode.
#pragma once
#include "runtime_api.h"

namespace emulator {

struct Warp;

// One lane's access; `turn` is the lane's execution count of the numbered instruction.
struct BankAccess {
  Site site;
  uint32_t address, bytes, lane, instruction, turn;
};

void note_bank_access(uint32_t address, uint32_t bytes, Site site);
// Counts the conflicts of accesses noted since the lanes last converged. Converged lanes agree on the execution counts.
void count_bank_conflicts(Warp& warp);

}  // namespace emulator
