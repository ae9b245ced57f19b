// Blocks of 16 × 16 elements in the registers of a warp, from which all products are made. A lane holds of a block what
// it holds of two tiles of accumulators side by side, and X Yᵀ needs no exchange between lanes: rounded accumulators
// are operand A as they are, and, regrouped, operand B of their transpose. bf16.cuh and chunked/tf32.cuh say how.
#pragma once
#include "kda_backward/tile.cuh"

constexpr int kChunk = 16;  // tokens

// X Yᵀ has a left block and a right one. What is read as one of them is stored in the order of its registers.
enum class Side { kLeft, kRight };
