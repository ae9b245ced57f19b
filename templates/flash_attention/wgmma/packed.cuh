// The rows after the end of a packed sequence belong to the next sequence: they are not read, and their O is not
// written.
#pragma once
#include "flash_attention/output_rows.cuh"
#include "flash_attention/wgmma/consumer.cuh"

// Zeroes the values after the sequence's last key, for which P is 0: 0 · NaN would be NaN. Executed by all consumers,
// which share the tile; only the first tile they visit may contain such values.
template <class Tile>
__device__ __forceinline__ void clear_neighbours(Consumer<Tile> const& rows, typename Tile::Keys const& keys,
                                                 unsigned char* smem, Work const& work) {
  using Values = typename Tile::Values;
  int const own = keys.end(work) - (work.tiles - 1) * Tile::BN;  // rows of the last tile that belong to the sequence
  if (own >= Tile::BN) return;
  mbarrier_wait(rows.barriers.values_full(rows.keys.stage), rows.keys.parity);
  unsigned char* s_values = smem + Tile::kValues + rows.keys.stage * Tile::kValueBytes;
#pragma unroll
  for (int p = 0; p < Values::kCount; ++p) {
    int const row_bytes = 2 * Values::width(p);
    unsigned char* s_panel = s_values + 2 * Tile::BN * Values::column(p);
    for (int at = own * row_bytes + 16 * threadIdx.x; at < Tile::BN * row_bytes; at += 16 * Tile::kConsumers)
      *reinterpret_cast<uint4*>(s_panel + at) = {};
  }
  fence_proxy_async();
  named_barrier_sync(1, Tile::kConsumers);
}

// Stores the rows of the warpgroup's 64 rows of O that belong to the sequence, if a copy of all would overwrite the
// next sequence.
template <class Tile>
__device__ __forceinline__ void store_own(OutputRows<typename Tile::T> const& o, unsigned char const* s_o,
                                          Work const& work, int first_query, int thread) {
  constexpr int kChunks = Tile::DV / 8;  // chunks of 16 bytes
  int const heads = 1 << work.packed_log2;
  for (int i = thread; i < 64 * kChunks; i += 128) {
    int const row = i / kChunks, col = i % kChunks * 8, query = first_query + row / heads;
    if (query >= work.sequence.queries) return;
    *reinterpret_cast<uint4*>(o.at(work.global_row(query), work.head + row % heads) + col) =
        *reinterpret_cast<uint4 const*>(s_o + Tile::Outputs::offset(64, row, col));
  }
}
