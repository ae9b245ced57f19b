// Blocks of 16 × 16 elements in the registers of a warp, the operands of all products. A lane holds the same elements
// of a block as of two adjacent accumulator tiles, and X Yᵀ needs no exchange between lanes: rounded accumulators are
// operand A directly, and, regrouped, operand B of their transpose. bf16.cuh and chunked/tf32.cuh define the layouts.
#pragma once
#include "kda_backward/tile.cuh"

constexpr int kChunk = 16;  // tokens per chunk

// X Yᵀ has a left block and a right block. Data read as one of them are stored in the order of its registers.
enum class Side { kLeft, kRight };
