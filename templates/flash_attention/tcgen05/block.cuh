// A block of attention on tcgen05: one warpgroup per row tile for its softmax, a warp that loads, and a warp whose
// first thread issues all products.
#pragma once
#include "flash_attention/tcgen05/output.cuh"
#include "flash_attention/tcgen05/products.cuh"

// Global memory of a launch.
template <class Tile>
struct Tensors {
  PanelMaps q, o;
  typename Tile::Keys::Maps k, v;
  OutputRows<typename Tile::T> rows;  // rows of o, for packed sequences
  float* g_lse;
};

template <class Tile>
__device__ __forceinline__ void load_all(uint32_t smem, Barriers<Tile> const& barriers, Tensors<Tile> const& of,
                                         typename Tile::Keys const& keys, Work const& work) {
  Loader<Tile> loader{smem, barriers, of.q, of.k, of.v};
  loader.load(work, keys, 0, [] {});
}

// Zeroes the values after a sequence's last key, for which P is 0: 0 · NaN would be NaN. Executed by the warp that
// issues products; only the first tile may contain such values.
template <class Tile>
__device__ __forceinline__ void clear_neighbours(unsigned char* smem, Barriers<Tile> const& barriers,
                                                 typename Tile::Keys const& keys, Work const& work) {
  using Values = typename Tile::Values;
  int const own = keys.end(work) - (work.tiles - 1) * Tile::BN;  // rows of the last tile that belong to the sequence
  if (own >= Tile::BN) return;
  mbarrier_wait(barriers.values_full(0), 0);
#pragma unroll
  for (int p = 0; p < Values::kCount; ++p) {
    int const row_bytes = 2 * Values::width(p);
    unsigned char* s_panel = smem + Tile::kValues + 2 * Tile::BN * Values::column(p);
    for (int at = own * row_bytes + 16 * (threadIdx.x % 32); at < Tile::BN * row_bytes; at += 16 * 32)
      *reinterpret_cast<uint4*>(s_panel + at) = {};
  }
  fence_proxy_async();
  __syncwarp();
}

template <class Tile>
__device__ __forceinline__ void multiply_all(uint32_t smem, uint32_t tensor, Barriers<Tile> const& barriers,
                                             typename Tile::Keys const& keys, Work const& work) {
  Products<Tile> products{smem, tensor, barriers};
#pragma unroll
  for (int i = 0; i < Tile::kWarpgroups; ++i) products.tiles[i] = keys.visited(work, Tile::kRows * i, Tile::kRows);
  products.issue(work.tiles - 1);
}

template <class Tile>
__device__ __forceinline__ void set_scale(RowThread<Tile>& row, float scale) { row.scale = scale; }
template <class Tile>
__device__ __forceinline__ void set_scale(RowThread<Tile>& row, Softcap scale) {
  row.inner = scale.inner;
  row.scale = scale.outer;
}

// Executed by a warpgroup: afterwards its row tile's O is in tensor memory, not yet divided by sums. `tensor`: the
// allocated address.
template <class Tile, class Scale>
__device__ __forceinline__ RowThread<Tile> attend_all(uint32_t tensor, Barriers<Tile> const& barriers,
                                                      typename Tile::Keys const& keys, Work const& work, Scale scale) {
  int const i = threadIdx.x / 128, lane = threadIdx.x % 128, first = Tile::kRows * i + lane / 32 * 32;
  RowThread<Tile> row{tensor + (lane / 32 << 21), barriers, i};
  set_scale(row, scale);
  typename Tile::Keys::RowMask const mask = keys.row_mask(work, Tile::kRows * i + lane, first);
  int const tiles = keys.visited(work, Tile::kRows * i, Tile::kRows);
#pragma unroll 1
  for (int tile = tiles - 1; tile >= 0; --tile) row.attend(mask, tile, tiles - 1 - tile);
  row.await_output(tiles - 1);
  return row;
}

// Recomputed at each use: a value that is live throughout a role occupies a register, or spills.
__device__ __forceinline__ int own_warp() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }

// Called by all threads. Returns the address of tensor memory, which is then allocated; barriers are initialized, and
// the results of find() are visible.
template <class Tile, class Find>
__device__ __forceinline__ uint32_t begin_block(unsigned char* smem, Barriers<Tile> const& barriers, Find const& find) {
  if (own_warp() == Tile::kProductsWarp) {
    tcgen05_alloc(shared_address(smem) + Tile::kTensor, Tile::kColumns);
    tcgen05_relinquish_alloc_permit();
  }
  if (threadIdx.x == 0) init_barriers(barriers);
  find();
  tcgen05_fence_before_thread_sync();
  __syncthreads();
  tcgen05_fence_after_thread_sync();
  return *reinterpret_cast<uint32_t const*>(smem + Tile::kTensor);
}
template <class Tile>
__device__ __forceinline__ void end_block(uint32_t tensor) {
  __syncwarp();
  tcgen05_fence_before_thread_sync();
  __syncthreads();  // tensor memory is no longer read
  tcgen05_fence_after_thread_sync();
  if (own_warp() == Tile::kProductsWarp) tcgen05_dealloc(tensor, Tile::kColumns);
}

// Called by all threads.
template <class Tile, class Scale>
__device__ __forceinline__ void compute_block(unsigned char* smem, Tensors<Tile> const& of, typename Tile::Keys const& keys,
                                              Sizes const& sizes, Scale scale) {
  uint32_t const s = shared_address(smem);
  Barriers<Tile> const barriers{s + Tile::kBarriers};
  Work& work = *reinterpret_cast<Work*>(smem + Tile::kWork);
  uint32_t const tensor = begin_block(smem, barriers, [&] {
    if (threadIdx.x == 32) Schedule<Tile>(sizes).locate_work(work, blockIdx.x, keys);
  });
  int const warp = own_warp();
  if (Tile::kPackedSequences && work.tiles == 0) {
    // The sequence has no such row tile.
  } else if (warp < Tile::kLoaderWarp) {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    RowThread<Tile> const row = attend_all(tensor, barriers, keys, work, scale);
    float* g_lse = of.g_lse + (int64_t(work.sequence.batch) * sizes.heads + work.head) * sizes.seq_q;
    store_rows(of.o, of.rows, g_lse, smem, row, work, sizes.seq_q);
  } else {
    setmaxnreg_dec<Tile::kIssuerRegisters>();
    if (Tile::kForeignValues && warp == Tile::kProductsWarp) clear_neighbours(smem, barriers, keys, work);
    bool const elected = elect_one();  // ptxas recognizes that this is a single thread
    if (warp == Tile::kLoaderWarp && elected) load_all(s, barriers, of, keys, work);
    if (warp == Tile::kProductsWarp && elected) multiply_all(s, tensor, barriers, keys, work);
  }
  end_block<Tile>(tensor);
}
