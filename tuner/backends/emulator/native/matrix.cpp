// ldmatrix, stmatrix and mma.sync: warp fragments in the layouts of fragment.cuh.
#include <array>
#include <cstring>
#include <type_traits>

#include "collective.h"
#include "element.h"
#include "memory.h"
#include "report.h"
#include "scheduler.h"
#include "shadow.h"
#include "tensor_core.h"

#define __host__
#define __device__
#include "fragment.cuh"

namespace emulator {

namespace {

constexpr int kMatrixRows = 8, kRowBytes = 16;

// ---- 8x8 matrices

struct MatrixArguments {
  uint32_t* r;
  uint32_t address;
  int matrices;
};

// Positions of element 0 and element 1 of each lane in a row-major 8x8 matrix.
template <class Layout>
constexpr auto element_positions() {
  std::array<std::array<uint8_t, 2>, kWarpSize> positions{};
  for (int lane = 0; lane < kWarpSize; lane++)
    for (int e = 0; e < 2; e++) positions[lane][e] = uint8_t(Layout::row(lane, e) * 8 + Layout::col(lane, e));
  return positions;
}
template <class Layout>
constexpr auto kPositions = element_positions<Layout>();

// The rows of one matrix, in the lanes that supply their addresses; counts bank wavefronts.
struct Rows {
  unsigned char* row[kMatrixRows];
};

Rows rows_of(Rendezvous& meeting, int matrix, char const* what, bool writes) {
  Rows rows;
  uint32_t served = 0;  // 16-byte columns of the 128 bytes that one wavefront serves
  for (int i = 0; i < kMatrixRows; i++) {
    int const lane = matrix * kMatrixRows + i;
    uint32_t const address = argument<MatrixArguments>(meeting, lane).address;
    current = meeting.warp->lanes + lane;
    rows.row[i] = shared_pointer(address, kRowBytes, kRowBytes, what, meeting.site);
    check_shared(address, kRowBytes, writes, meeting.site);
    uint32_t const column = 1u << (address / kRowBytes % 8);
    bool repeated = false;
    for (int j = 0; j < i; j++) repeated |= rows.row[j] == rows.row[i];
    if (!repeated && served & column) counters.bank_conflicts++;
    served |= column;
  }
  return rows;
}

template <class Layout>
void run_ldmatrix(Rendezvous& meeting) {
  ThreadIndex* const caller = current;
  int const matrices = argument<MatrixArguments>(meeting, 0).matrices;
  counters.ldmatrix += uint64_t(matrices);
  for (int matrix = 0; matrix < matrices; matrix++) {
    Rows const rows = rows_of(meeting, matrix, "ldmatrix", false);
    uint16_t tile[64];
    for (int i = 0; i < kMatrixRows; i++) std::memcpy(tile + 8 * i, rows.row[i], kRowBytes);
    for (int lane = 0; lane < kWarpSize; lane++) {
      auto const [lo, hi] = kPositions<Layout>[lane];
      argument<MatrixArguments>(meeting, lane).r[matrix] = tile[lo] | uint32_t(tile[hi]) << 16;
    }
  }
  current = caller;
}

template <class Layout>
void run_stmatrix(Rendezvous& meeting) {
  ThreadIndex* const caller = current;
  int const matrices = argument<MatrixArguments>(meeting, 0).matrices;
  counters.stmatrix += uint64_t(matrices);
  for (int matrix = 0; matrix < matrices; matrix++) {
    uint16_t tile[64];
    for (int lane = 0; lane < kWarpSize; lane++) {
      auto const [lo, hi] = kPositions<Layout>[lane];
      uint32_t const pair = argument<MatrixArguments>(meeting, lane).r[matrix];
      tile[lo] = uint16_t(pair);
      tile[hi] = uint16_t(pair >> 16);
    }
    Rows const rows = rows_of(meeting, matrix, "stmatrix", true);
    for (int i = 0; i < kMatrixRows; i++) std::memcpy(rows.row[i], tile + 8 * i, kRowBytes);
  }
  current = caller;
}

// ---- mma.sync

struct MmaArguments {
  float* d;
  uint32_t const *a, *b;
};

// Position of each lane's elements in the row-major tile.
template <class Fragment>
constexpr auto fragment_positions() {
  std::array<std::array<uint8_t, Fragment::kElements>, kWarpSize> positions{};
  for (int lane = 0; lane < kWarpSize; lane++)
    for (int e = 0; e < Fragment::kElements; e++)
      positions[lane][e] = uint8_t(Fragment::row(lane, e) * Fragment::kCols + Fragment::col(lane, e));
  return positions;
}
template <class Fragment>
constexpr auto kFragment = fragment_positions<Fragment>();

// Unpacks a lane's elements to their positions in the tile; a register holds one or two elements.
template <class Fragment, class Bits>
void gather(Bits* tile, int lane, uint32_t const* r) {
  constexpr int kInRegister = sizeof(uint32_t) / sizeof(Bits);
  constexpr bool kNeighbours = Fragment::row(0, 0) == Fragment::row(0, kInRegister - 1);
  auto const& position = kFragment<Fragment>[lane];
  for (int i = 0; i < Fragment::kElements / kInRegister; i++) {
    if constexpr (kNeighbours) {
      std::memcpy(tile + position[kInRegister * i], r + i, sizeof(uint32_t));
    } else {
      tile[position[2 * i]] = Bits(r[i]);
      tile[position[2 * i + 1]] = Bits(r[i] >> 16);
    }
  }
}

// tf32 operands are fp32 bits, of which tensor cores read the upper 19.
template <Element ELEMENT, int COUNT, class Bits>
void fill_from_bits(Tile<COUNT>& tile, Bits const* bits) {
  fill(tile, COUNT, least_exponent(ELEMENT), [=](int i) {
    if constexpr (ELEMENT == Element::tf32)
      return *reinterpret_cast<Ints const*>(bits + i) & int32_t(0xffffe000);
    else
      return widen_eight(*reinterpret_cast<EightHalves const*>(bits + i), ELEMENT);
  });
}

// d += a b with tensor-core rounding.
template <class Shape, Element ELEMENT>
void run_mma(Rendezvous& meeting) {
  static_assert(Shape::kN == 8, "a row of the tile is a row of `add_products`");
  using Bits = std::conditional_t<ELEMENT == Element::tf32, uint32_t, uint16_t>;
  constexpr int kCountA = Shape::kM * Shape::kK, kCountB = Shape::kK * Shape::kN;
  alignas(32) Bits bits_a[kCountA], bits_b[kCountB];
  alignas(32) float c[Shape::kM * Shape::kN];
  for (int lane = 0; lane < kWarpSize; lane++) {
    auto const& call = argument<MmaArguments>(meeting, lane);
    gather<typename Shape::A>(bits_a, lane, call.a);
    gather<typename Shape::B>(bits_b, lane, call.b);
    for (int e = 0; e < Shape::C::kElements; e++) c[kFragment<typename Shape::C>[lane][e]] = call.d[e];
  }
  Tile<kCountA> a;
  Tile<kCountB> b;
  fill_from_bits<ELEMENT>(a, bits_a);
  fill_from_bits<ELEMENT>(b, bits_b);
  {
    TowardsZero const mode;
    for (int i = 0, first = 0; i < Shape::kM; i++, first += Shape::kK)
      add_products<Shape::kK, sizeof(Bits)>(c + 8 * i, {a.value + first, a.exponent + first, 1},
                                            {b.value, b.exponent, 8}, grid.options.mma_sync);
  }
  for (int lane = 0; lane < kWarpSize; lane++) {
    float* const d = argument<MmaArguments>(meeting, lane).d;
    for (int e = 0; e < Shape::C::kElements; e++) d[e] = c[kFragment<typename Shape::C>[lane][e]];
  }
}

}  // namespace

void ldmatrix(uint32_t* r, int matrices, bool trans, uint32_t address, Site site) {
  MatrixArguments call{r, address, matrices};
  meet(Operation::ldmatrix, kAllLanes, &call, site, trans ? run_ldmatrix<Matrix8x8Trans> : run_ldmatrix<Matrix8x8>);
}

void stmatrix(uint32_t address, uint32_t const* r, int matrices, bool trans, Site site) {
  MatrixArguments call{const_cast<uint32_t*>(r), address, matrices};
  meet(Operation::stmatrix, kAllLanes, &call, site, trans ? run_stmatrix<Matrix8x8Trans> : run_stmatrix<Matrix8x8>);
}

void mma_m16n8k16(float* d, uint32_t const* a, uint32_t const* b, Element element, Site site) {
  MmaArguments call{d, a, b};
  auto const run = element == Element::bf16 ? run_mma<M16N8K16, Element::bf16> : run_mma<M16N8K16, Element::fp16>;
  meet(Operation::mma, kAllLanes, &call, site, run);
  if (current->lane == 0) counters.mma_m16n8k16++;
}

void mma_m16n8k8(float* d, uint32_t const* a, uint32_t const* b, Element element, Site site) {
  MmaArguments call{d, a, b};
  if (element == Element::tf32) {
    meet(Operation::mma, kAllLanes, &call, site, run_mma<M16N8K8Tf32, Element::tf32>);
    if (current->lane == 0) counters.mma_m16n8k8_tf32++;
  } else {
    auto const run = element == Element::bf16 ? run_mma<M16N8K8, Element::bf16> : run_mma<M16N8K8, Element::fp16>;
    meet(Operation::mma, kAllLanes, &call, site, run);
    if (current->lane == 0) counters.mma_m16n8k8++;
  }
}

}  // namespace emulator
