// Who has read a piece of memory since it was written.
#pragma once
#include <vector>

#include "state.h"

namespace emulator {

// One node of a list: a read by a thread of a block.
struct Reader {
  uint32_t next;
  uint32_t block;
  Stamp stamp;
};

// Persistent lists by index, 0 the empty one: cells with the same history share theirs.
class ReaderLists {
 public:
  ReaderLists() { clear(); }
  void clear() {
    nodes_.resize(1);  // 0 is the empty list
    last_from_ = copied_from_ = ~0u;
  }

  // `list` and the running thread, without those that its read covers.
  uint32_t add(uint32_t list) {
    Thread const* thread = self();
    Reader const reader{0, thread->block->linear, {thread->linear, thread->clock.now}};
    if (list == last_from_ && same(nodes_[last_to_], reader)) return last_to_;
    last_from_ = list;
    while (list && ordered_before(nodes_[list].block, nodes_[list].stamp, Access::read)) list = nodes_[list].next;
    nodes_.push_back({list, reader.block, reader.stamp});
    return last_to_ = uint32_t(nodes_.size() - 1);
  }

  // `list` and a read on other hardware, which a barrier of `block` counts; what is ordered after it is ordered after those before it.
  uint32_t add(uint32_t list, uint32_t block, Stamp copy) {
    Reader const reader{0, block, copy};
    if (list == copied_from_ && same(nodes_[copied_to_], reader)) return copied_to_;
    copied_from_ = list;
    while (list && nodes_[list].block == block && nodes_[list].stamp.thread == copy.thread) list = nodes_[list].next;
    nodes_.push_back({list, block, copy});
    return copied_to_ = uint32_t(nodes_.size() - 1);
  }

  // A read in `list` that nothing orders before the running thread's next access; null: there is none.
  Reader const* unordered(uint32_t list) const {
    for (; list; list = nodes_[list].next)
      if (!ordered_before(nodes_[list].block, nodes_[list].stamp, Access::read)) return &nodes_[list];
    return nullptr;
  }

 private:
  static bool same(Reader const& a, Reader const& b) {
    return a.block == b.block && a.stamp.thread == b.stamp.thread && a.stamp.clock == b.stamp.clock;
  }
  std::vector<Reader> nodes_;
  uint32_t last_from_, last_to_ = 0, copied_from_, copied_to_ = 0;
};

}  // namespace emulator
