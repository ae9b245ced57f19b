// Register layouts of fragments: (lane, element) → row and column of the tile, as defined in the PTX ISA under "Matrix
// Fragments". The PTX wrappers, the emulator, which gathers through these functions, and the tests all rely on them.
// 16-bit element e is in register e / 2, the even ones in the low half; A is [m][k], B [k][n], C [m][n].
#pragma once
#include "types.cuh"

#define LAYOUT static constexpr __host__ __device__ int

struct M16N8K16 {  // 16-bit operands
  static constexpr int kM = 16, kN = 8, kK = 16;
  struct A {
    static constexpr int kRows = 16, kCols = 16, kElements = 8;
    LAYOUT row(int lane, int e) { return lane / 4 + (e / 2 % 2) * 8; }
    LAYOUT col(int lane, int e) { return lane % 4 * 2 + e % 2 + (e / 4) * 8; }
  };
  struct B {
    static constexpr int kRows = 16, kCols = 8, kElements = 4;
    LAYOUT row(int lane, int e) { return lane % 4 * 2 + e % 2 + (e / 2) * 8; }
    LAYOUT col(int lane, int) { return lane / 4; }
  };
  struct C {
    static constexpr int kRows = 16, kCols = 8, kElements = 4;
    LAYOUT row(int lane, int e) { return lane / 4 + (e / 2) * 8; }
    LAYOUT col(int lane, int e) { return lane % 4 * 2 + e % 2; }
  };
};

struct M16N8K8 {  // 16-bit operands
  static constexpr int kM = 16, kN = 8, kK = 8;
  struct A {
    static constexpr int kRows = 16, kCols = 8, kElements = 4;
    LAYOUT row(int lane, int e) { return lane / 4 + (e / 2) * 8; }
    LAYOUT col(int lane, int e) { return lane % 4 * 2 + e % 2; }
  };
  struct B {
    static constexpr int kRows = 8, kCols = 8, kElements = 2;
    LAYOUT row(int lane, int e) { return lane % 4 * 2 + e; }
    LAYOUT col(int lane, int) { return lane / 4; }
  };
  using C = M16N8K16::C;
};

struct M16N8K8Tf32 {  // one element per register
  static constexpr int kM = 16, kN = 8, kK = 8;
  struct A {
    static constexpr int kRows = 16, kCols = 8, kElements = 4;
    LAYOUT row(int lane, int e) { return lane / 4 + (e % 2) * 8; }
    LAYOUT col(int lane, int e) { return lane % 4 + (e / 2) * 4; }
  };
  struct B {
    static constexpr int kRows = 8, kCols = 8, kElements = 2;
    LAYOUT row(int lane, int e) { return lane % 4 + e * 4; }
    LAYOUT col(int lane, int) { return lane / 4; }
  };
  using C = M16N8K16::C;
};

// One register of ldmatrix and stmatrix: an 8x8 matrix of 16-bit elements; lane `8 * matrix + row` supplies the address
// of a row.
struct Matrix8x8 {
  static constexpr int kRows = 8, kCols = 8, kElements = 2;
  LAYOUT row(int lane, int) { return lane / 4; }
  LAYOUT col(int lane, int e) { return lane % 4 * 2 + e; }
};
struct Matrix8x8Trans {
  static constexpr int kRows = 8, kCols = 8, kElements = 2;
  LAYOUT row(int lane, int e) { return lane % 4 * 2 + e; }
  LAYOUT col(int lane, int) { return lane / 4; }
};

// wgmma.m64nNk16: `thread` is the index within the warpgroup; C has N / 2 elements per thread.
struct M64K16 {
  static constexpr int kM = 64, kK = 16;
  struct A {
    static constexpr int kRows = 64, kCols = 16, kElements = 8;
    LAYOUT row(int thread, int e) { return thread / 32 * 16 + M16N8K16::A::row(thread % 32, e); }
    LAYOUT col(int thread, int e) { return M16N8K16::A::col(thread % 32, e); }
  };
  struct C {
    static constexpr int kRows = 64;
    LAYOUT row(int thread, int e) { return thread / 32 * 16 + M16N8K16::C::row(thread % 32, e % 4); }
    LAYOUT col(int thread, int e) { return e / 4 * 8 + M16N8K16::C::col(thread % 32, e % 4); }
  };
};

#undef LAYOUT
