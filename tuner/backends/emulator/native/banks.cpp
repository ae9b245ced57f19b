// Bank conflicts: a wavefront serves 128 bytes of a warp's access, one word per bank.
#include "banks.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "report.h"
#include "state.h"

namespace emulator {

namespace {

constexpr uint32_t kBanks = 32, kWord = 4;
constexpr size_t kMostNoted = 1 << 16;

using Accesses = std::vector<BankAccess>;

// Numbers each instruction and counts how often a lane has executed it. Threads mostly follow the same path, so the
// instruction that came next last time is tried first.
class Instructions {
 public:
  void start_lane() { lane_++, last_ = 0; }

  void number(BankAccess& access) {
    uint32_t next = known_[last_].next;
    if (known_[next].bits != access.site.bits) {
      next = find(access.site.bits);
      known_[last_].next = next;
    }
    last_ = next;
    Known& known = known_[last_];
    if (known.lane != lane_) known.lane = lane_, known.turns = 0;
    access.instruction = last_;
    access.turn = known.turns++;
  }

  uint32_t count() const { return uint32_t(known_.size()); }

 private:
  struct Known {
    uint64_t bits, lane;  // lane: the number, among all started lanes, of the one that `turns` counts for
    uint32_t turns, next;
  };

  uint32_t find(uint64_t bits) {
    auto const [found, added] = numbers_.try_emplace(bits, count());
    if (added) known_.push_back({bits, 0, 0, 0});
    return found->second;
  }

  std::vector<Known> known_{Known{}};  // sentinel before all others
  std::unordered_map<uint64_t, uint32_t> numbers_;
  uint64_t lane_ = 0;
  uint32_t last_ = 0;
};

// Stable counting sort by a key below `keys`.
template <class Key>
void order_by(Accesses& accesses, size_t keys, Key key) {
  static Accesses ordered;
  static std::vector<uint32_t> next;
  next.assign(keys + 1, 0);
  for (BankAccess const& access : accesses) next[key(access) + 1]++;
  std::partial_sum(next.begin(), next.end(), next.begin());
  ordered.resize(accesses.size());
  for (BankAccess const& access : accesses) ordered[next[key(access)]++] = access;
  accesses.swap(ordered);
}

// Sorts by instruction, turn and lane.
void order(Accesses& accesses) {
  order_by(accesses, kWarpSize, [](BankAccess const& access) { return access.lane; });
  Instructions instructions;
  uint32_t lane = kWarpSize, turns = 0;
  for (BankAccess& access : accesses) {
    if (access.lane != lane) instructions.start_lane();
    lane = access.lane;
    instructions.number(access);
    turns = std::max(turns, access.turn + 1);
  }
  order_by(accesses, turns, [](BankAccess const& access) { return access.turn; });
  order_by(accesses, instructions.count(), [](BankAccess const& access) { return access.instruction; });
}

// Wavefronts beyond the first that the lanes [first, last) need.
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

// The end of the group that is served together with `first`: the same instruction and turn, and as many lanes as 128
// bytes cover: a whole, half or quarter warp.
BankAccess const* served_together(BankAccess const* first, BankAccess const* end) {
  uint32_t const lanes = std::min<uint32_t>(kWarpSize, kBanks * kWord / std::max(first->bytes, kWord));
  uint32_t const beyond = (first->lane / lanes + 1) * lanes;
  return std::find_if_not(first, end, [&](BankAccess const& a) {
    return a.instruction == first->instruction && a.turn == first->turn && a.lane < beyond;
  });
}

}  // namespace

void note_bank_access(uint32_t address, uint32_t bytes, Site site) {
  Warp& warp = warp_of(self());
  if (bytes > 16) return;
  if (warp.bank_accesses.size() == kMostNoted) count_bank_conflicts(warp);
  warp.bank_accesses.push_back({site, address, bytes, current->lane, 0, 0});
}

void count_bank_conflicts(Warp& warp) {
  Accesses& accesses = warp.bank_accesses;
  if (accesses.empty()) return;
  order(accesses);
  BankAccess const* const end = accesses.data() + accesses.size();
  for (BankAccess const* first = accesses.data(); first != end;) {
    BankAccess const* const last = served_together(first, end);
    counters.bank_conflicts += conflicts(first, last);
    first = last;
  }
  accesses.clear();
}

}  // namespace emulator
