// Pending bulk copies.
#pragma once
#include "state.h"

namespace emulator {

// Up to 16 contiguous bytes of a copy: bytes [first, last) of the chunk are in global memory, the others out of bounds.
struct Chunk {
  uint32_t shared;
  unsigned char* global;  // address of byte 0
  int first, last;
};

// A copy into shared memory that has been issued and has not landed.
struct Transfer {
  std::vector<Chunk> chunks;
  std::vector<unsigned char> data;  // read at issue if the source is global memory or registers
  uint32_t width;  // bytes per chunk
  uint32_t barrier, clock;
  Site site;
  Block* source;  // the source block of a copy between blocks, which is read on landing; otherwise null
  uint32_t from;  // shared address in the source block
};

// A copy out of shared memory in a thread's bulk group.
struct BulkStore {
  std::vector<Chunk> chunks;
  std::vector<unsigned char> data;  // empty until the source has been read
  bool adds;  // adds fp32 values instead of copying
  bool read, done;
  Site site;
};

void finish_any_transfer();  // lands one copy into the running block
void finish_stores();  // writes the stores whose source the exiting thread has only waited to be read
void check_outstanding();  // called when the running thread is about to exit

}  // namespace emulator
