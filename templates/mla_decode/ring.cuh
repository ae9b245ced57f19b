// Copies of rows from global to shared memory, 8 lanes per row: each step reads 128 bytes of it. Latent rows are in
// pages, whose addresses are looked up one tile ahead.
#pragma once
#include "paged_attention/pages.cuh"

// A thread's share of kRows rows: every eighth chunk of every kApart-th row.
template <class Layout, int kRows, int kThreads>
struct RowCopies {
  static constexpr int kApart = kThreads / 8;
  static constexpr int kOwn = ceil_div(kRows, kApart);  // rows per thread
  static_assert(kApart % 8 == 0, "the swizzle repeats after 8 rows, so that a thread's rows lie a constant apart");

  uint32_t offset;  // offset of the first chunk in the tile

  __device__ __forceinline__ RowCopies() : offset(Layout::offset(threadIdx.x / 8, chunk(0))) { forget(offset); }
  static __device__ __forceinline__ int row(int i) { return threadIdx.x / 8 + i * kApart; }
  static __device__ __forceinline__ bool has(int i) { return kRows % kApart == 0 || row(i) < kRows; }

  // Starts copying row(i) from g_row; a row that does not exist becomes zeros.
  template <class T>
  __device__ __forceinline__ void load(uint32_t s_tile, int i, T const* g_row, bool exists) const {
    if (!has(i)) return;
    uint32_t const s_first = s_tile + offset + i * kApart * Layout::kRowBytes;
    T const* g_first = g_row + chunk(0) * 8;
#pragma unroll
    for (int pass = 0; pass < ceil_div(Layout::kChunks, 8); ++pass)
      if (Layout::kChunks % 8 == 0 || chunk(pass) < Layout::kChunks)
        cp_async<16>(s_first + pass * Layout::kSpanBytes, g_first + pass * 64, exists ? 16 : 0);
  }

 private:
  static __device__ __forceinline__ int chunk(int pass) { return threadIdx.x % 8 + pass * 8; }
};

// Tiles of a range of one sequence's rows, in a ring of slots: one is read while the others are loaded.
template <class Tile>
struct LatentRing {
  using T = typename Tile::T;
  using Copies = RowCopies<typename Tile::Layout, Tile::BN, Tile::kThreads>;

  Table table;
  Cache<T> cache;
  int first, tiles, end;  // the first row, the number of tiles from there on, and the end of the rows
  uint32_t s_slots;
  Copies copies;
  int next[Copies::kOwn];  // pages of the tile to be loaded next
  int issued = 0;

  __device__ __forceinline__ LatentRing(Table const& table, Cache<T> const& cache, int first, int end, uint32_t s_slots)
      : table(table), cache(cache), first(first), tiles(ceil_div(max(end - first, 0), Tile::BN)), end(end),
        s_slots(s_slots) {
    look_up();
  }
  __device__ __forceinline__ int key(int tile) const { return first + tile * Tile::BN; }

  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int i = 0; i < Tile::kStages - 1; ++i) {
      issue();
      issue_late();
    }
  }
  // Waits for the oldest tile, and returns its address. Every thread has then finished with the previous tile, whose
  // slot is refilled, except for its last kLate rows: issue_late refills these once they are no longer used.
  __device__ __forceinline__ uint32_t acquire(int tile) {
    cp_async_wait<(Tile::kStages - 2) * (Tile::kLate ? 2 : 1)>();
    Tile::arrived();
    __syncthreads();
    issue();
    if (Tile::kLate == 0) issue_late();
    return slot(tile);
  }
  __device__ __forceinline__ void issue_late() {
    if constexpr (Tile::kLate > 0) start(true);
    ++issued;
    look_up();
  }
  __device__ __forceinline__ uint32_t slot(unsigned tile) const {
    return s_slots + tile % Tile::kStages * Tile::kTileBytes;
  }

 private:
  // Rows beyond the range use the page of the last row.
  __device__ __forceinline__ int row(int i) const { return min(key(issued) + Copies::row(i), end - 1); }
  __device__ __forceinline__ void look_up() {
#pragma unroll
    for (int i = 0; i < Copies::kOwn; ++i)
      if (issued < tiles && Copies::has(i)) next[i] = table.page(row(i));
  }
  __device__ __forceinline__ void issue() { start(false); }
  // Starts copying the next tile, its last kLate rows or the others; after the last tile, an empty group keeps the
  // group count consistent.
  __device__ __forceinline__ void start(bool late) {
    if (issued < tiles) {
#pragma unroll
      for (int i = 0; i < Copies::kOwn; ++i) {
        if (Tile::kLate > 0 && (Copies::row(i) >= Tile::BN - Tile::kLate) != late) continue;
        T const* g_row = cache.data + next[i] * cache.page_stride + table.row(row(i)) * cache.row_stride;
        copies.load(slot(issued), i, g_row, key(issued) + Copies::row(i) < end);
      }
    }
    cp_async_commit();
  }
};
