// Tensor memory of a block (sm_100): its cells, their allocations, and in checked mode the last accesses.
#pragma once
#include <deque>

#include "shared_operand.h"
#include "state.h"

namespace emulator {

constexpr int kTensorLanes = 128, kTensorColumns = 512;
constexpr int kQuarters = kTensorLanes / kWarpSize;  // of the lanes, each for one warp of four

// What one tcgen05_ld or _st of a warp, or one product, did to tensor memory.
struct TensorAccess {
  int references;
  int warp;       // -1: a product
  Stamp product;  // its issuer's column and its number
  Site site;
  // Of each lane of the warp: its clock at the access, at its wait, and at the fence behind that; 0: not yet.
  struct Lane {
    uint32_t accessed, waited, fenced;
  } lanes[kWarpSize];
};
using TensorAccessRef = Reference<TensorAccess>;
void destroy(TensorAccess* access);

// 32 lanes of a column, which every instruction touches together.
struct TensorCell {
  bool initialized;
  TensorAccessRef writer;
  std::vector<TensorAccessRef> readers;  // since it wrote
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

// Of a thread that issues products: what it has issued, in order, and what of that is not done.
struct Issuer {
  uint32_t thread;
  uint32_t issued;  // products
  Site last;
  // A product, or a commit behind those before it.
  struct Item {
    bool commits;
    TensorProduct product;
    uint32_t barrier;
    RowRef known;  // by the thread at its commit
    uint32_t number;
    Site site;
  };
  std::deque<Item> queue;
};

// A warp's tcgen05_ld or _st that has not been waited for.
struct TensorMove {
  bool done;
  uint32_t address;
  int registers;
  void* to[kWarpSize];         // of a load, each lane's registers
  std::vector<uint32_t> data;  // of a store, [lane][register]
  TensorAccessRef access;      // checked mode
};

struct TensorMemory {
  alignas(32) uint32_t cells[kTensorLanes][kTensorColumns];
  std::vector<Allocation> allocations;
  int last_columns;  // of the block's latest allocation
  bool relinquished;
  std::vector<Issuer> issuers;
  std::vector<TensorMove> loads[kMaxWarps], stores[kMaxWarps];
  // Checked mode.
  TensorCell shadow[kQuarters][kTensorColumns];
  std::vector<TensorAccessRef> unfenced[kMaxWarps];  // waited for, and not fenced by all lanes
  std::vector<RowRef> fenced;                        // by thread: what it knew at its last fence after a barrier
};

// The block's, with `columns` from the address on allocated; what is not ends the launch.
TensorMemory& tensor_memory(uint32_t address, int columns, char const* what, Site site);

inline int column_of(uint32_t address) { return int(address & 0xffff); }
inline int lane_of(uint32_t address) { return int(address >> 16); }

// ---- checked mode: what an access does, and finds

TensorAccessRef access_of_warp(Warp const& warp, Site site);
TensorAccessRef access_of_product(Stamp product, Site site);
// All of a column's quarters, or one of them for a warp.
struct Columns {
  int first, count, quarter;  // -1: all
};
void check_tensor_read(TensorAccessRef const& by, Columns columns);
void check_tensor_write(TensorAccessRef const& by, Columns columns);
void check_tensor_free(Columns columns, Site site);
void note_waited(std::vector<TensorMove> const& moves, Warp const& warp);

void check_tensor_memory(Block const& done);  // all threads of the block have exited

}  // namespace emulator
