// Vector clocks: sharing, joining and publishing them.
#include "clock.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace emulator {

// Rows of other blocks at their releases, by block.
struct Foreign {
  int references;
  std::vector<std::pair<uint32_t, RowRef>> rows;  // sorted
};

namespace {

int clock_width;
// Flag of a foreign row's block: orders that block's reads but not its writes.
constexpr uint32_t kReadsOnly = 1u << 31;
// Free list for the current width; outlives every static that holds rows.
std::vector<Row*>& spare_rows = *new std::vector<Row*>;

Row* make_row() {
  Row* row;
  if (spare_rows.empty()) {
    row = static_cast<Row*>(std::malloc(sizeof(Row) + 2 * sizeof(uint32_t) * clock_width));
    row->known = reinterpret_cast<uint32_t*>(row + 1);
    row->fenced = row->known + clock_width;
  } else {
    row = spare_rows.back();
    spare_rows.pop_back();
  }
  row->references = 0;
  row->width = clock_width;
  row->foreign = nullptr;
  std::memset(row->known, 0, 2 * sizeof(uint32_t) * clock_width);
  return row;
}

Row* copy_of(Row const* source) {
  Row* row = make_row();
  std::memcpy(row->known, source->known, 2 * sizeof(uint32_t) * clock_width);
  row->foreign = source->foreign;
  if (row->foreign) row->foreign->references++;
  return row;
}

RowRef join_rows(RowRef const& a, RowRef const& b);

Reference<Foreign> join_foreign(Foreign* a, Foreign* b) {
  if (!a || !b || a == b) return Reference<Foreign>(a ? a : b);
  Reference<Foreign> joined(new Foreign{0, a->rows});
  for (auto const& [block, row] : b->rows) {
    auto place = std::lower_bound(joined->rows.begin(), joined->rows.end(), block,
                                  [](auto const& entry, uint32_t wanted) { return entry.first < wanted; });
    if (place != joined->rows.end() && place->first == block)
      place->second = join_rows(place->second, row);
    else
      joined->rows.insert(place, {block, row});
  }
  return joined;
}

void set_foreign(Row* row, Reference<Foreign> const& foreign) {
  Reference<Foreign> old(row->foreign);
  if (row->foreign) row->foreign->references--;
  row->foreign = foreign.get();
  if (row->foreign) row->foreign->references++;
}

void join_into(Row* row, Row const* other) {
  for (int i = 0; i < 2 * clock_width; i++) row->known[i] = std::max(row->known[i], other->known[i]);
  if (other->foreign && other->foreign != row->foreign) set_foreign(row, join_foreign(row->foreign, other->foreign));
}

// The lanes of a warp usually join the same two rows in succession, so the last result is cached.
struct LastJoin {
  RowRef a, b, joined;
} last_join;

RowRef join_rows(RowRef const& a, RowRef const& b) {
  if (!a || !b || a.get() == b.get()) return a ? a : b;
  if (last_join.a.get() == a.get() && last_join.b.get() == b.get()) return last_join.joined;
  Row* row = copy_of(a.get());
  join_into(row, b.get());
  RowRef joined(row);
  last_join = {a, b, joined};
  return joined;
}

// A copy of a row without other blocks. The lanes of a warp usually request the same one, so it is cached.
struct LastFlat {
  RowRef row, flat;
} last_flat;

RowRef flattened(RowRef const& row) {
  if (!row->foreign) return row;
  if (last_flat.row.get() == row.get()) return last_flat.flat;
  Row* flat = copy_of(row.get());
  set_foreign(flat, {});
  last_flat = {row, RowRef(flat)};
  return last_flat.flat;
}

void add_foreign(Row* row, std::vector<std::pair<uint32_t, RowRef>> rows) {
  Reference<Foreign> const news(new Foreign{0, std::move(rows)});
  set_foreign(row, join_foreign(row->foreign, news.get()));
}

// Adds another block's publication to a row of `block`, with everything that it recorded about other blocks.
void absorb(Row* row, uint32_t block, Publication const& published) {
  // Flat, because rows with nested foreign rows would double with every block of a chain.
  add_foreign(row, {{published.block, flattened(published.row)}});
  Foreign* const more = published.row->foreign;
  if (!more) return;
  set_foreign(row, join_foreign(row->foreign, more));
  for (auto const& [known, theirs] : more->rows)
    if (known == block) join_into(row, theirs.get());
}

}  // namespace

void destroy(Row* row) {
  set_foreign(row, {});
  if (row->width == clock_width)
    spare_rows.push_back(row);
  else
    std::free(row);
}

void destroy(Foreign* foreign) { delete foreign; }

void set_clock_width(int threads) {
  int const width = threads + kAgents + kIssuers;
  last_join = {};
  last_flat = {};
  if (width == clock_width) return;
  for (Row* row : spare_rows) std::free(row);
  spare_rows.clear();
  clock_width = width;
}

int agent_column(int agent) { return clock_width - kIssuers - kAgents + agent % kAgents; }
int issuer_column(int issuer) { return clock_width - kIssuers + issuer; }

RowRef empty_row() { return RowRef(make_row()); }

void Gather::add(Clock const& clock, uint32_t thread) {
  add(clock.row);
  joined_->known[thread] = std::max(joined_->known[thread], clock.now);
}

void Gather::add(RowRef const& row) {
  if (row.get() == last_.get()) return;
  if (!joined_)
    joined_ = RowRef(copy_of(row.get()));
  else
    join_into(joined_.get(), row.get());
  last_ = row;
}

void Gather::add_agent(int column, uint32_t until) {
  if (!joined_) joined_ = empty_row();
  uint32_t& known = joined_->known[column];
  known = std::max(known, until);
}

void Gather::add_reads(Publication const& published) {
  if (!joined_) joined_ = empty_row();
  add_foreign(joined_.get(), {{published.block | kReadsOnly, flattened(published.row)}});
}

RowRef Gather::take() {
  last_ = {};
  return std::move(joined_);
}

bool knows_foreign(Clock const& clock, uint32_t block, Stamp stamp, Access access) {
  if (!clock.row->foreign) return false;
  for (auto const& [known, row] : clock.row->foreign->rows) {
    bool const counts = known == block || (access == Access::read && known == (block | kReadsOnly));
    if (counts && row->known[stamp.thread] >= stamp.clock) return true;
  }
  return false;
}

RowRef publish(Clock& clock, uint32_t thread) {
  Row* row = copy_of(clock.row.get());
  row->known[thread] = clock.now++;
  return RowRef(row);
}

void learn(Clock& clock, RowRef const& published) { clock.row = join_rows(clock.row, published); }

void learn_foreign(Clock& clock, uint32_t block, Publication const& published) {
  Row* row = copy_of(clock.row.get());
  absorb(row, block, published);
  clock.row = RowRef(row);
}

RowRef joined_across(uint32_t block, std::vector<Publication> const& published) {
  if (published.empty()) return {};
  RowRef joined = empty_row();
  for (Publication const& each : published)
    if (each.block == block)
      join_into(joined.get(), each.row.get());
    else
      absorb(joined.get(), block, each);
  return joined;
}

void proxy_fence(Clock& clock, uint32_t thread) {
  Row* row = copy_of(clock.row.get());
  std::memcpy(row->fenced, row->known, sizeof(uint32_t) * clock_width);
  row->fenced[thread] = clock.now++;
  clock.row = RowRef(row);
}

}  // namespace emulator
