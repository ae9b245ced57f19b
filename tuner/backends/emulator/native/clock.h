// Vector clocks: which accesses of which threads are ordered before a thread's next one.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace emulator {

struct Foreign;

// What is ordered before a thread, of its block: for each thread, each agent of the copy engine and each issuer of products, the clock
// up to which its accesses are ordered before. Immutable once shared; threads that synchronised share one.
struct Row {
  int references;
  int width;
  Foreign* foreign;  // the same of other blocks; may be null
  uint32_t* known;   // [width]
  uint32_t* fenced;  // [width]: the part of `known` that a proxy fence made visible to the copy engine
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

// One access, as the shadow of memory remembers it.
struct Stamp {
  uint32_t thread : 11;  // kMaxThreads, the agents and issuers behind them
  uint32_t clock : 21;   // 0: never
};

// What a thread of a block knew when it released.
struct Publication {
  uint32_t block;
  RowRef row;
};

struct Clock {
  uint32_t now;                      // ticks at every release
  RowRef row;                        // never null
  RowRef fence;                      // at its last __threadfence: what its relaxed stores publish; may be null
  std::vector<Publication> pending;  // read by relaxed loads: acquired by its next __threadfence
};

// The join of several threads' knowledge, as a barrier makes it.
class Gather {
 public:
  void add(Clock const& clock, uint32_t thread);
  void add(RowRef const& row);
  void add_agent(int column, uint32_t until);  // of agent_column or issuer_column
  void add_reads(Publication const& published);  // of another block
  RowRef take();  // and start again; null when none was added

 private:
  RowRef joined_;
  RowRef last_;  // already in it
};

constexpr int kAgents = 64;  // columns behind the threads: the copy engine's work, by mbarrier
constexpr int kIssuers = 8;  // and behind those the tensor cores', by the thread that issues it
int agent_column(int agent);
int issuer_column(int issuer);

// Whether `stamp` of the own block is ordered before the next access of `thread` with this clock.
inline bool knows(Clock const& clock, uint32_t thread, Stamp stamp) {
  return stamp.thread == thread || clock.row->known[stamp.thread] >= stamp.clock;
}
// Some releases to other blocks order what was read before them, and not what was written.
enum class Access { write, read };
bool knows_foreign(Clock const& clock, uint32_t block, Stamp stamp, Access access);
inline bool knows_fenced(Clock const& clock, Stamp stamp) { return clock.row->fenced[stamp.thread] >= stamp.clock; }

void set_clock_width(int threads);
RowRef empty_row();                                 // nothing is ordered before it
RowRef publish(Clock& clock, uint32_t thread);      // everything before now, for others to acquire; ticks
void learn(Clock& clock, RowRef const& published);  // from the own block
void learn_foreign(Clock& clock, uint32_t block, Publication const& published);  // `block` is the own one
// The join over the threads of all those blocks, as `block` sees it; null: empty.
RowRef joined_across(uint32_t block, std::vector<Publication> const& published);
void proxy_fence(Clock& clock, uint32_t thread);

}  // namespace emulator
