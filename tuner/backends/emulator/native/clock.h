// Vector clocks: the accesses of other threads that are ordered before a thread's next access.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace emulator {

struct Foreign;

// The accesses ordered before a thread, within its block: the latest ordered clock of each thread, each agent of bulk
// copies and each issuer of products. Immutable once shared; synchronised threads share one row.
struct Row {
  int references;
  int width;
  Foreign* foreign;  // the same for other blocks; may be null
  uint32_t* known;   // [width]
  uint32_t* fenced;  // [width]: the part of `known` that a proxy fence made visible to the async proxy
};

template <class T>
class Reference {
 public:
  Reference() = default;
  explicit Reference(T* object) : object_(object) {
    if (object_) object_->references++;
  }
  Reference(Reference const& other) : Reference(other.object_) {}
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() {
    if (object_ && --object_->references == 0) destroy(object_);
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

void destroy(Row* row);
void destroy(Foreign* foreign);
using RowRef = Reference<Row>;

// One access as stored in shadow memory.
struct Stamp {
  uint32_t thread : 11;  // below kMaxThreads a thread, above it an agent or issuer
  uint32_t clock : 21;   // 0: never
};

// The state that a thread published with a release.
struct Publication {
  uint32_t block;
  RowRef row;
};

struct Clock {
  uint32_t now;  // incremented at every release
  RowRef row;                        // never null
  RowRef fence;  // row at its last __threadfence, which relaxed stores publish; may be null
  std::vector<Publication> pending;  // publications read by relaxed loads, acquired by its next __threadfence
};

// The join of several threads' rows, as a barrier computes it.
class Gather {
 public:
  void add(Clock const& clock, uint32_t thread);
  void add(RowRef const& row);
  void add_agent(int column, uint32_t until);  // takes agent_column or issuer_column
  void add_reads(Publication const& published);  // from another block
  RowRef take();  // resets the join; null if nothing was added

 private:
  RowRef joined_;
  RowRef last_;  // the row joined last
};

constexpr int kAgents = 64;  // columns after the threads: bulk copies, by mbarrier
constexpr int kIssuers = 8;  // columns after the agents: tensor-core products, by issuing thread
int agent_column(int agent);
int issuer_column(int issuer);

// Whether `stamp`, from the same block, is ordered before the next access of `thread` with this clock.
inline bool knows(Clock const& clock, uint32_t thread, Stamp stamp) {
  return stamp.thread == thread || clock.row->known[stamp.thread] >= stamp.clock;
}
// Some releases to other blocks order prior reads but not prior writes.
enum class Access { write, read };
bool knows_foreign(Clock const& clock, uint32_t block, Stamp stamp, Access access);
inline bool knows_fenced(Clock const& clock, Stamp stamp) { return clock.row->fenced[stamp.thread] >= stamp.clock; }

void set_clock_width(int threads);
RowRef empty_row();  // orders nothing
RowRef publish(Clock& clock, uint32_t thread);  // publishes all prior accesses for others to acquire, and ticks
void learn(Clock& clock, RowRef const& published);  // from the same block
// From another block; `block` is the thread's own.
void learn_foreign(Clock& clock, uint32_t block, Publication const& published);
// The join over the threads of all these blocks, as seen by `block`; null if empty.
RowRef joined_across(uint32_t block, std::vector<Publication> const& published);
void proxy_fence(Clock& clock, uint32_t thread);

}  // namespace emulator
