// A block of paged attention on tcgen05: flash_attention's roles, a warp that finds the row tiles to compute, from all
// keys or a share of them, and a warp that loads boxes of pages.
#pragma once
#include "flash_attention/split_keys/part.cuh"
#include "flash_attention/tcgen05/block.cuh"
#include "paged_attention/batch.cuh"
#include "paged_attention/tcgen05/keys.cuh"
#include "paged_attention/panels/loader.cuh"

// Destination of parts of O, if the block has only a share of the keys.
struct PartsOfO {
  float *o, *rows;  // [.., D], [.., 2]
};

// Stores the thread's partial result for its row, as fp32 and not divided by the sum: row index · BM + row of the
// parts.
template <class Tile>
__device__ __forceinline__ void store_share(PartsOfO const& parts, RowThread<Tile> const& row, PagedWork const& work) {
  constexpr int kChunk = RowThread<Tile>::kChunk;
  int const own = Tile::kRows * row.i + threadIdx.x % 128;
  int64_t const row_index = int64_t(work.index) * Tile::BM + own;
  bool const stored = work.query(own) < work.sequence.queries;
  if (stored) reinterpret_cast<RowSum*>(parts.rows)[row_index] = {row.softmax.max, row.softmax.sum};
#pragma unroll
  for (int col = 0; col < Tile::DV16; col += kChunk) {
    float r_o[kChunk];
    row.load_output(r_o, col);
#pragma unroll
    for (int e = 0; e < kChunk; e += 4)
      if (stored && col + e < Tile::DV)
        *reinterpret_cast<float4*>(parts.o + row_index * Tile::DV + col + e) =
            make_float4(r_o[e], r_o[e + 1], r_o[e + 2], r_o[e + 3]);
  }
}

// Called by all threads. `tables`: tables of all sequences, `table_stride` apart.
template <class Tile, class Scale>
__device__ __forceinline__ void run_block(unsigned char* smem, Batch<Tile> const& batch, Tensors<Tile> const& of,
                                          PartsOfO const& parts, typename Tile::Keys const& keys, Table const& tables,
                                          int64_t table_stride, Scale scale) {
  constexpr int kFinds = Tile::kProductsWarp + 1;  // a warp
  uint32_t const s = shared_address(smem);
  Barriers<Tile> const barriers{s + Tile::kBarriers};
  PagedWork& work = *reinterpret_cast<PagedWork*>(smem + Tile::kWork);
  uint32_t const tensor = begin_block(smem, barriers, [&] {
    if (own_warp() == kFinds) batch.find(work, blockIdx.x, keys);
  });
  int const warp = own_warp();
  if (work.tiles == 0) {
    // There are fewer row tiles and shares than blocks.
  } else if (warp < Tile::kLoaderWarp) {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    RowThread<Tile> const row = attend_all(tensor, barriers, keys, work, scale);
    if (Tile::kSplits > 1 && work.parts > 1) {
      store_share(parts, row, work);
    } else {
      float* g_lse = of.g_lse + (int64_t(work.sequence.batch) * batch.heads + work.head) * batch.seq_q;
      store_rows(of.o, of.rows, g_lse, smem, row, work, batch.seq_q);
    }
  } else {
    setmaxnreg_dec<Tile::kIssuerRegisters>();
    if (warp == Tile::kLoaderWarp) {
      PageLoader<Tile> loader{{s, barriers, of.q, of.k, of.v}, keys, tables, table_stride};
      loader.load(work, 0);
    }
    if (warp == Tile::kProductsWarp) {
      clear_neighbours(smem, barriers, keys, work);
      if (elect_one()) multiply_all(s, tensor, barriers, keys, work);
    }
  }
  end_block<Tile>(tensor);
}
