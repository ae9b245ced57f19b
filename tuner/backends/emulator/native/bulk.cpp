// Bulk copies: contiguous copies and tensor boxes between global and shared memory, with their completion times.
#include "bulk.h"

#include <algorithm>
#include <cstring>

#include "cluster.h"
#include "fault.h"
#include "mbarrier.h"
#include "memory.h"
#include "report.h"
#include "shadow.h"
#include "swizzle.cuh"
#include "wgmma.h"

namespace emulator {

namespace {

constexpr int kChunk = 16;

// ---- the parts of a copy

// `other` is the source or destination in `memory`.
void check_multiples(int bytes, uintptr_t other, char const* memory, char const* what, Site site) {
  if (bytes > 0 && bytes % kChunk == 0 && other % kChunk == 0) return;
  report("misaligned", site, "%s: %d bytes at %s address ...%x: both must be multiples of 16, and some bytes", what,
         bytes, memory, unsigned(other & 0xff));
  stop();
}

std::vector<Chunk> contiguous(uint32_t shared, void const* global, int bytes, char const* what, Site site) {
  check_multiples(bytes, reinterpret_cast<uintptr_t>(global), "global", what, site);
  shared_pointer(shared, uint32_t(bytes), kChunk, what, site);
  auto* from = static_cast<unsigned char*>(const_cast<void*>(global));
  std::vector<Chunk> chunks;
  for (int i = 0; i < bytes; i += kChunk) chunks.push_back({shared + uint32_t(i), from + i, 0, kChunk});
  return chunks;
}

// The layout of the emulator's replacement for a CUtensorMap.
struct Map {
  uint64_t magic;
  unsigned char* base;
  int32_t rank, element_bytes, swizzle, unused;
  int32_t size[5], box[5];
  int64_t stride[5];  // in bytes; the element size for dim 0
};
constexpr uint64_t kMagic = 0x70616d726f736e74;  // "tnsormap"

Map const& checked_map(void const* map, uint32_t shared, Coordinates const& box, char const* what, Site site) {
  Map const& tensor = *static_cast<Map const*>(map);
  if (tensor.magic != kMagic || tensor.rank != box.rank) {
    report("tma", site, "%s with %d coordinates: the map is no map of a %d-D tensor", what, box.rank, box.rank);
    stop();
  }
  if (int64_t(box.at[0]) * tensor.element_bytes % kChunk != 0) {
    report("tma", site, "%s from element %d of the innermost dim: its byte must be a multiple of %d", what, box.at[0],
           kChunk);
    stop();
  }
  auto const swizzle = Swizzle(tensor.swizzle);
  // A swizzle pattern repeats every 8 spans, and readers assume that it starts at the tile.
  uint32_t const alignment = swizzle == Swizzle::kNone ? 128 : 8 * uint32_t(swizzle_span(swizzle));
  uint32_t bytes = uint32_t(tensor.element_bytes);
  for (int i = 0; i < tensor.rank; i++) bytes *= uint32_t(tensor.box[i]);
  shared_pointer(shared, bytes, alignment, what, site);
  return tensor;
}

// The chunks of one innermost row of the box; `global` is element 0 of the tensor's row, or null if out of bounds.
void add_row(std::vector<Chunk>& chunks, Map const& tensor, uint32_t shared, unsigned char* global, int c0) {
  int const row_bytes = tensor.box[0] * tensor.element_bytes;
  int64_t const begin = int64_t(c0) * tensor.element_bytes;
  int64_t const end = global ? int64_t(tensor.size[0]) * tensor.element_bytes : 0;
  for (int i = 0; i < row_bytes; i += kChunk) {
    int const first = int(std::clamp<int64_t>(-(begin + i), 0, kChunk));
    int const last = int(std::clamp<int64_t>(end - (begin + i), first, kChunk));
    uint32_t const address = swizzled(shared + uint32_t(i), Swizzle(tensor.swizzle));
    chunks.push_back({address, global ? global + begin + i : nullptr, first, last});
  }
}

std::vector<Chunk> box_of(Map const& tensor, uint32_t shared, Coordinates const& box) {
  int const row_bytes = tensor.box[0] * tensor.element_bytes;
  int rows = 1;
  for (int i = 1; i < tensor.rank; i++) rows *= tensor.box[i];
  std::vector<Chunk> chunks;
  for (int row = 0; row < rows; row++) {
    unsigned char* global = tensor.base;
    bool inside = true;
    for (int i = 1, rest = row; i < tensor.rank; rest /= tensor.box[i], i++) {
      int64_t const at = int64_t(box.at[i]) + rest % tensor.box[i];
      inside &= at >= 0 && at < tensor.size[i];
      global += at * tensor.stride[i];
    }
    add_row(chunks, tensor, shared + uint32_t(row * row_bytes), inside ? global : nullptr, box.at[0]);
  }
  return chunks;
}

unsigned char* shared_bytes(Block const& owner, Chunk const& chunk) {
  return owner.shared.base + (chunk.shared - kSharedBase);
}

// ---- loads

void land_load(Block& to, Transfer const& transfer) {
  for (size_t i = 0; i < transfer.chunks.size(); i++) {
    Chunk const& chunk = transfer.chunks[i];
    std::memcpy(shared_bytes(to, chunk), transfer.source ? chunk.global : &transfer.data[i * transfer.width],
                transfer.width);
    land_async_write(to, chunk.shared, transfer.width);
  }
  uint32_t const bytes = uint32_t(transfer.chunks.size()) * transfer.width;
  if (transfer.source) end_block_read(*transfer.source, transfer.from, bytes);
  land_transfer(to, transfer.barrier, bytes, transfer.clock, transfer.site);
}

void read_global(Transfer& transfer) {
  transfer.data.assign(transfer.chunks.size() * kChunk, 0);
  operation_site = transfer.site;
  for (size_t i = 0; i < transfer.chunks.size(); i++) {
    Chunk const& chunk = transfer.chunks[i];
    if (chunk.first == chunk.last) continue;
    auto const bytes = uint32_t(chunk.last - chunk.first);
    if (checked()) check_access(chunk.global + chunk.first, bytes, false, transfer.site);
    if (checked()) check_engine_read(chunk.global + chunk.first, bytes, transfer.site);
    std::memcpy(&transfer.data[i * kChunk + size_t(chunk.first)], chunk.global + chunk.first, bytes);
  }
  operation_site = {};
}

void deliver(Block& to, Transfer transfer) {
  Stamp const stamp = begin_transfer(to, transfer.barrier, transfer.site);
  transfer.clock = stamp.clock;
  if (transfer.source) {
    begin_block_read(transfer.from, uint32_t(transfer.chunks.size()) * kChunk, to.linear, stamp, transfer.site);
    if (checked() && &to != block) note_copy_out(to, stamp, transfer.site);
  }
  bool const at_once = grid.options.timing == Timing::early;
  for (Chunk const& chunk : transfer.chunks) {
    check_shared_async_write(to, chunk.shared, transfer.width, stamp, transfer.site);
    if (!at_once) std::memset(shared_bytes(to, chunk), 0xff, transfer.width);
  }
  if (at_once)
    land_load(to, transfer);
  else
    to.transfers.push_back(std::move(transfer));
}

void deliver_to_cluster(int blocks, Transfer const& transfer) {
  int const size = cluster_size();
  if (blocks <= 0 || blocks >> size) {
    report("cluster", transfer.site, "a copy to the blocks %#x of a cluster of %d", blocks, size);
    stop();
  }
  for (int rank = 0; rank < size; rank++) {
    Block& to = *block->cluster->blocks[size_t(rank)];
    if (blocks >> rank & 1 && check_present(to, "a copy lands", transfer.site)) deliver(to, transfer);
  }
  grid.progress++;
}

void issue_load(std::vector<Chunk> chunks, uint32_t barrier, int blocks, Site site) {
  Transfer transfer{std::move(chunks), {}, kChunk, barrier, 0, site, nullptr, 0};
  read_global(transfer);
  counters.bulk_bytes += transfer.data.size();
  if (blocks == kThisBlock)
    deliver(*block, std::move(transfer));
  else
    deliver_to_cluster(blocks, transfer);
}

// ---- stores

void add_floats(unsigned char* sums, unsigned char const* terms, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += sizeof(float)) {
    float sum, term;
    std::memcpy(&sum, sums + i, sizeof sum);
    std::memcpy(&term, terms + i, sizeof term);
    sum += term;
    std::memcpy(sums + i, &sum, sizeof sum);
  }
}

void capture(BulkStore& store) {
  store.data.resize(store.chunks.size() * kChunk);
  for (size_t i = 0; i < store.chunks.size(); i++)
    std::memcpy(&store.data[i * kChunk], shared_bytes(*block, store.chunks[i]), kChunk);
}

// A reduction must be ordered like a plain read and write; otherwise sums are not reproducible.
void perform(BulkStore& store) {
  if (store.data.empty()) capture(store);
  operation_site = store.site;
  for (size_t i = 0; i < store.chunks.size(); i++) {
    Chunk const& chunk = store.chunks[i];
    if (chunk.first == chunk.last) continue;
    auto const bytes = uint32_t(chunk.last - chunk.first);
    unsigned char* const to = chunk.global + chunk.first;
    unsigned char const* const from = &store.data[i * kChunk + size_t(chunk.first)];
    if (checked() && store.adds) check_access(to, bytes, false, store.site);
    if (checked()) check_access(to, bytes, true, store.site);
    if (store.adds)
      add_floats(to, from, bytes);
    else
      std::memcpy(to, from, bytes);
  }
  operation_site = {};
  store.done = true;
}

void issue_store(std::vector<Chunk> chunks, bool adds, Site site) {
  if (self()->unfenced_acquire)
    report("proxy_fence", site, "the copy engine writes behind an acquire without fence_proxy_async_global");
  BulkStore store{std::move(chunks), {}, adds, false, false, site};
  counters.bulk_bytes += store.chunks.size() * kChunk;
  for (Chunk const& chunk : store.chunks)
    if (chunk.first < chunk.last)
      begin_async_read(chunk.shared + uint32_t(chunk.first), uint32_t(chunk.last - chunk.first), site);
  if (grid.options.timing == Timing::early || (grid.options.timing == Timing::random && random_below(2)))
    perform(store);
  self()->open_stores.push_back(std::move(store));
}

struct MappedPair {
  Block* to;
  uint32_t address, barrier;
};

// The destination of a copy to another block, and the barrier there that counts its bytes.
MappedPair resolve_pair(uint32_t mapped, uint32_t mapped_barrier, char const* what, Site site) {
  auto const [to, address] = resolve(mapped, what, site);
  auto const [owner, barrier] = resolve(mapped_barrier, what, site);
  if (to != owner) {
    report("cluster", site, "%s into block %u counts towards a barrier of block %u", what, rank_of(*to),
           rank_of(*owner));
    stop();
  }
  return {to, address, barrier};
}

// Shared memory may be overwritten from here on; the arrival of the copy is tracked separately.
void finish_read(BulkStore& store) {
  if (store.read) return;
  if (!store.done) capture(store);
  for (Chunk const& chunk : store.chunks)
    if (chunk.first < chunk.last)
      end_async_read(chunk.shared + uint32_t(chunk.first), uint32_t(chunk.last - chunk.first));
  store.read = true;
}

void finish(BulkStore& store) {
  finish_read(store);
  if (!store.done) perform(store);
}

}  // namespace

void bulk_load(uint32_t dst, void const* src, int bytes, uint32_t barrier, int blocks, Site site) {
  issue_load(contiguous(dst, src, bytes, "cp_async_bulk", site), barrier, blocks, site);
}

void tma_load(uint32_t dst, void const* map, uint32_t barrier, Coordinates const& box, int blocks, Site site) {
  issue_load(box_of(checked_map(map, dst, box, "tma_load", site), dst, box), barrier, blocks, site);
}

void store_async(uint32_t mapped, void const* value, int bytes, uint32_t mapped_barrier, Site site) {
  auto const [to, address, barrier] = resolve_pair(mapped, mapped_barrier, "store_async", site);
  shared_pointer(address, uint32_t(bytes), uint32_t(bytes), "store_async", site);
  if (!check_present(*to, "store_async", site)) return;
  auto* const data = static_cast<unsigned char const*>(value);
  deliver(*to, {{{address, nullptr, 0, bytes}}, {data, data + bytes}, uint32_t(bytes), barrier, 0, site, nullptr, 0});
  counters.cluster_bytes += uint32_t(bytes);
  grid.progress++;
}

void bulk_to_block(uint32_t mapped, uint32_t src, int bytes, uint32_t mapped_barrier, Site site) {
  char const* const what = "cp_async_bulk_to_block";
  auto const [to, address, barrier] = resolve_pair(mapped, mapped_barrier, what, site);
  check_multiples(bytes, src, "shared", what, site);
  unsigned char* const from = shared_pointer(src, uint32_t(bytes), kChunk, what, site);
  if (!check_present(*to, what, site)) return;
  deliver(*to, {contiguous(address, from, bytes, what, site), {}, kChunk, barrier, 0, site, block, src});
  counters.cluster_bytes += uint32_t(bytes);
  grid.progress++;
}

void bulk_store(void* dst, uint32_t src, int bytes, Site site) {
  issue_store(contiguous(src, dst, bytes, "cp_async_bulk_store", site), false, site);
}

void bulk_add(float* dst, uint32_t src, int bytes, Site site) {
  issue_store(contiguous(src, dst, bytes, "cp_async_bulk_add", site), true, site);
}

void fence_proxy_async_global() { self()->unfenced_acquire = false; }

void tma_store(void const* map, uint32_t src, Coordinates const& box, Site site) {
  issue_store(box_of(checked_map(map, src, box, "tma_store", site), src, box), false, site);
}

void finish_any_transfer() {
  auto& transfers = block->transfers;
  size_t const i = grid.options.timing == Timing::random ? random_below(uint32_t(transfers.size())) : 0;
  Transfer const transfer = std::move(transfers[i]);
  transfers.erase(transfers.begin() + ptrdiff_t(i));
  land_load(*block, transfer);
}

void bulk_commit() {
  Thread* thread = self();
  thread->store_groups.push_back(std::move(thread->open_stores));
  thread->open_stores.clear();
}

void bulk_wait(int groups_in_flight) {
  auto& groups = self()->store_groups;
  while (int(groups.size()) > groups_in_flight) {
    for (BulkStore& store : groups.front()) finish(store);
    groups.erase(groups.begin());
  }
}

void bulk_wait_read(int groups_in_flight) {
  auto& groups = self()->store_groups;
  for (int i = 0; i < int(groups.size()) - groups_in_flight; i++)
    for (BulkStore& store : groups[size_t(i)]) finish_read(store);
}

void finish_stores() {
  auto& groups = self()->store_groups;
  while (!groups.empty() && (groups.front().empty() || groups.front().front().read)) bulk_wait(int(groups.size()) - 1);
}

void check_outstanding() {
  Thread const* thread = self();
  for (auto const& group : thread->copy_groups)
    if (!group.empty())
      report("outstanding", group.front().site, "a thread exits before this cp_async has been waited for");
  for (AsyncCopy const& copy : thread->open_copies)
    report("outstanding", copy.site, "a thread exits before this cp_async has been waited for");
  for (auto const& group : thread->store_groups)
    if (!group.empty())
      report("outstanding", group.front().site, "a thread exits before its store has read shared memory");
  for (BulkStore const& store : thread->open_stores)
    report("outstanding", store.site, "a thread exits before its store was committed and waited for");
  check_outstanding_wgmma();
}

}  // namespace emulator
