// Bank conflicts: a warp's accesses from one instruction are served 128 bytes at a time, one word of each bank.
#include "banks.h"

#include <algorithm>
#include <tuple>

#include "report.h"
#include "state.h"

namespace emulator {

namespace {

constexpr uint32_t kBanks = 32, kWord = 4;
constexpr size_t kMostNoted = 1 << 16;

using Accesses = std::vector<BankAccess>;

void number_turns(Accesses& accesses) {
  std::stable_sort(accesses.begin(), accesses.end(), [](BankAccess const& a, BankAccess const& b) {
    return std::tie(a.site.bits, a.lane) < std::tie(b.site.bits, b.lane);
  });
  for (size_t i = 1; i < accesses.size(); i++) {
    bool const same = accesses[i].site.bits == accesses[i - 1].site.bits && accesses[i].lane == accesses[i - 1].lane;
    accesses[i].turn = same ? accesses[i - 1].turn + 1 : 0;
  }
}

// Wavefronts that the lanes [first, last) need beyond one.
uint64_t conflicts(BankAccess const* first, BankAccess const* last) {
  uint32_t words[kBanks][kWarpSize], used[kBanks] = {};
  uint32_t most = 1;
  for (BankAccess const* access = first; access != last; access++)
    for (uint32_t word = access->address / kWord; word <= (access->address + access->bytes - 1) / kWord; word++) {
      uint32_t const bank = word % kBanks;
      uint32_t* const end = words[bank] + used[bank];
      if (std::find(words[bank], end, word) != end || used[bank] == kWarpSize) continue;
      *end = word;
      most = std::max(most, ++used[bank]);
    }
  return most - 1;
}

// Lanes are served together as far as 128 bytes reach: all, halves or quarters of the warp.
bool served_together(BankAccess const& a, BankAccess const& b) {
  uint32_t const lanes = std::min<uint32_t>(kWarpSize, kBanks * kWord / std::max(a.bytes, kWord));
  return a.site.bits == b.site.bits && a.turn == b.turn && a.lane / lanes == b.lane / lanes;
}

}  // namespace

void note_bank_access(uint32_t address, uint32_t bytes, Site site) {
  Warp& warp = warp_of(self());
  if (bytes > 16) return;
  if (warp.bank_accesses.size() == kMostNoted) count_bank_conflicts(warp);
  warp.bank_accesses.push_back({site, address, bytes, current->lane, 0});
}

void count_bank_conflicts(Warp& warp) {
  Accesses& accesses = warp.bank_accesses;
  if (accesses.empty()) return;
  number_turns(accesses);
  std::sort(accesses.begin(), accesses.end(), [](BankAccess const& a, BankAccess const& b) {
    return std::tie(a.site.bits, a.turn, a.lane) < std::tie(b.site.bits, b.turn, b.lane);
  });
  for (auto first = accesses.begin(); first != accesses.end();) {
    auto const last =
        std::find_if_not(first, accesses.end(), [&](BankAccess const& a) { return served_together(*first, a); });
    counters.bank_conflicts += conflicts(&*first, &*first + (last - first));
    first = last;
  }
  accesses.clear();
}

}  // namespace emulator
