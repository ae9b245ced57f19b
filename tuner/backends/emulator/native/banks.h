// Bank conflicts of loads and stores that threads make by themselves, in checked mode.
#pragma once
#include "runtime_api.h"

namespace emulator {

struct Warp;

// One lane's access; `turn` numbers the lane's accesses from the same instruction, which has a number of its own.
struct BankAccess {
  Site site;
  uint32_t address, bytes, lane, instruction, turn;
};

void note_bank_access(uint32_t address, uint32_t bytes, Site site);
// Lanes that have met agree about how often each came by an instruction: counts conflicts of what was noted since.
void count_bank_conflicts(Warp& warp);

}  // namespace emulator
