// The readers of a piece of memory since its last write.
#pragma once
#include <vector>

#include "state.h"

namespace emulator {

// A list node: a read by a thread of a block.
struct Reader {
  uint32_t next;
  uint32_t block;
  Stamp stamp;
};

// Persistent lists by index; 0 is the empty list. Cells with the same history share a list.
class ReaderLists {
 public:
  ReaderLists() { clear(); }
  void clear() {
    nodes_.resize(1);  // 0 is the empty list
    last_from_ = copied_from_ = ~0u;
  }

  // Adds the running thread to `list`, without the reads that its own read covers.
  uint32_t add(uint32_t list) {
    Thread const* thread = self();
    Reader const reader{0, thread->block->linear, {thread->linear, thread->clock.now}};
    if (list == last_from_ && same(nodes_[last_to_], reader)) return last_to_;
    last_from_ = list;
    while (list && ordered_before(nodes_[list].block, nodes_[list].stamp, Access::read)) list = nodes_[list].next;
    nodes_.push_back({list, reader.block, reader.stamp});
    return last_to_ = uint32_t(nodes_.size() - 1);
  }

  // Adds an asynchronous read by `block` to `list`. An access ordered after it is also ordered after the earlier reads.
  uint32_t add(uint32_t list, uint32_t block, Stamp copy) {
    Reader const reader{0, block, copy};
    if (list == copied_from_ && same(nodes_[copied_to_], reader)) return copied_to_;
    copied_from_ = list;
    while (list && nodes_[list].block == block && nodes_[list].stamp.thread == copy.thread) list = nodes_[list].next;
    nodes_.push_back({list, block, copy});
    return copied_to_ = uint32_t(nodes_.size() - 1);
  }

  // A read in `list` that is not ordered before the running thread's next access; null if there is none.
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
