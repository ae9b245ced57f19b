// Work of the copy engine.
#pragma once
#include "state.h"

namespace emulator {

// Up to 16 contiguous bytes of a copy: bytes [first, last) of the chunk lie in global memory, the others outside it.
struct Chunk {
  uint32_t shared;
  unsigned char* global;  // of byte 0
  int first, last;
};

// A copy into shared memory that has been issued and has not landed.
struct Transfer {
  std::vector<Chunk> chunks;
  std::vector<unsigned char> data;  // read at issue, where it comes from global memory or registers
  uint32_t width;                   // bytes a chunk
  uint32_t barrier, clock;
  Site site;
  Block* source;  // of a copy between blocks, which reads its shared memory when it lands; otherwise null
  uint32_t from;  // its shared address there
};

// A copy out of shared memory, of a thread's bulk group.
struct BulkStore {
  std::vector<Chunk> chunks;
  std::vector<unsigned char> data;  // once it has been read
  bool adds;                        // fp32 to what lies there, in place of a copy
  bool read, done;
  Site site;
};

void finish_any_transfer();  // into the running block
void finish_stores();        // those that the running thread, about to exit, knows only to have been read
void check_outstanding();    // the running thread is about to exit

}  // namespace emulator
