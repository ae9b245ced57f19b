// Tensor memory of a block (sm_100): its cells, their allocations, and the last accesses in checked mode.
#pragma once
#include <deque>

#include "shared_operand.h"
#include "state.h"

namespace emulator {

constexpr int kTensorLanes = 128, kTensorColumns = 512;
constexpr int kQuarters = kTensorLanes / kWarpSize;  // quarters of the lanes, each accessible to one warp of four

// An access to tensor memory: a warp's tcgen05_ld or tcgen05_st, or a product.
struct TensorAccess {
  int references;
  int warp;  // -1 for a product
  Stamp product;  // the issuer's clock column and the product's number
  Site site;
  // Clocks per lane: at the access, at its wait, and at the fence after that; 0: not yet.
  struct Lane {
    uint32_t accessed, waited, fenced;
  } lanes[kWarpSize];
};
using TensorAccessRef = Reference<TensorAccess>;
void destroy(TensorAccess* access);

// 32 lanes of a column, which every instruction accesses together.
struct TensorCell {
  bool initialized;
  TensorAccessRef writer;
  std::vector<TensorAccessRef> readers;  // since the last write
};

struct Allocation {
  int first, columns;
  Site site;
};

struct TensorProduct {
  uint32_t d;
  int n;
  Element element;
  bool a_in_tensor_memory, accumulate;
  uint32_t a_address;
  SharedOperand a, b;
  Site site;
};

// The products of one issuing thread, in order, and those that are not complete.
struct Issuer {
  uint32_t thread;
  uint32_t issued;  // number of products
  Site last;
  // A product, or a commit after earlier products.
  struct Item {
    bool commits;
    TensorProduct product;
    uint32_t barrier;
    RowRef known;  // known to the thread at its commit
    uint32_t number;
    Site site;
  };
  std::deque<Item> queue;
};

// A warp's tcgen05_ld or tcgen05_st that has not been waited for.
struct TensorMove {
  bool done;
  uint32_t address;
  int registers;
  void* to[kWarpSize];  // each lane's destination registers of a load
  std::vector<uint32_t> data;  // data of a store: [lane][register]
  TensorAccessRef access;      // checked mode
};

struct TensorMemory {
  alignas(32) uint32_t cells[kTensorLanes][kTensorColumns];
  std::vector<Allocation> allocations;
  int last_columns;  // columns of the block's latest allocation
  bool relinquished;
  std::vector<Issuer> issuers;
  std::vector<TensorMove> loads[kMaxWarps], stores[kMaxWarps];
  // Checked mode.
  TensorCell shadow[kQuarters][kTensorColumns];
  std::vector<TensorAccessRef> unfenced[kMaxWarps];  // waited for, but not fenced by all lanes
  std::vector<RowRef> fenced;  // per thread: its row at its last fence after a barrier
};

// The block's tensor memory; ends the launch unless `columns` columns are allocated from the address on.
TensorMemory& tensor_memory(uint32_t address, int columns, char const* what, Site site);

inline int column_of(uint32_t address) { return int(address & 0xffff); }
inline int lane_of(uint32_t address) { return int(address >> 16); }

// ---- checked mode: effects and checks of an access

TensorAccessRef access_of_warp(Warp const& warp, Site site);
TensorAccessRef access_of_product(Stamp product, Site site);
// All quarters of a column, or the one of a warp.
struct Columns {
  int first, count, quarter;  // -1: all quarters
};
void check_tensor_read(TensorAccessRef const& by, Columns columns);
void check_tensor_write(TensorAccessRef const& by, Columns columns);
void check_tensor_free(Columns columns, Site site);
void note_waited(std::vector<TensorMove> const& moves, Warp const& warp);

void check_tensor_memory(Block const& done);  // called when all threads of the block have exited

}  // namespace emulator
