// What the gradients of a chunk need of all values: sums over them, for 16 kPairs channels a warp. All that the scans
// left is read in the order of operands, so that no warp needs another, and none shared memory.
#pragma once
#include "beside.cuh"
#include "register.cuh"

using Square = Tile[2];  // [tokens, tokens]

// Element (row, row) of a square, row = lane / 4 + 8 half, in the one of the row's four lanes that holds it.
__device__ __forceinline__ float of_diagonal(Square const& square, int half, int lane) {
  return lane / 4 % 2 ? square[half][2 * half + 1] : square[half][2 * half];
}

// Rows are tokens, but channels of `decay`.
template <class Operands, int kPairs>
struct Sums {
  Tile q[2 * kPairs];                            // do Sᵀ
  Tile k[2 * kPairs];                            // y Sᵀ
  Tile rest[2 * kPairs];                         // e dSᵀ
  typename Operands::Diagonal decay[kPairs];     // of S dSᵀ
  Square queries;                                // do eᵀ
  Square keys;                                   // y eᵀ
};

// kInFlight: steps of 16 values whose loads are on their way at once.
template <class T, int K, int V, class Operands, int kPairs, int kInFlight>
struct ValueSums {
  using Image = ::Image<K, Operands>;
  using Block = typename Operands::Block;
  using Sums = ::Sums<Operands, kPairs>;
  static constexpr int kSteps = V / 16, kBlock = Operands::kBlock;

  int lane, tokens;
  Scanned from;
  View<T const> d_o;
  unsigned char const* image;

  // Of chunk `index` of its sequence, of which kSpan share what the scans left.
  template <int kSpan>
  __device__ __forceinline__ void add_up(Sums& r, int channel, int index) const {
    if (kSpan == 2 && index % 2) {
      add_up(r, Beside<T, K, Operands, kPairs, Made::kState>(neighbour(-1), channel, lane));
    } else if (kSpan == 2 && tokens > kChunk) {
      add_up(r, Beside<T, K, Operands, kPairs, Made::kGradient>(neighbour(1), channel, lane));
    } else {
      add_up(r, Beside<T, K, Operands, kPairs, Made::kNothing>{});
    }
  }
  __device__ __forceinline__ Neighbour<T> neighbour(int step) const {
    constexpr int kTokens = V / 16 * kBlock;  // uint4 of a tensor of tokens and values, of one chunk
    return {image + step * Image::kBytes,
            from.r + step * kTokens,
            from.y + step * kTokens,
            {d_o.first + step * kChunk * d_o.stride, d_o.stride},
            tokens - step * kChunk};
  }
  // What `beside` makes takes the place of what was stored.
  template <Made kMade>
  __device__ __forceinline__ void add_up(Sums& r, Beside<T, K, Operands, kPairs, kMade> const& beside) const {
    Block r_errors;
    auto const* g_errors = reinterpret_cast<uint4 const*>(image + Image::kErrors) + Operands::place(lane);
    Operands::template load<Side::kLeft>(r_errors, g_errors);
    int steps = kSteps;
    if (kInFlight == 1) forget(steps);  // few steps would be unrolled all the same, and spill
#pragma unroll kInFlight
    for (int step = 0; step < steps; ++step) {
      Block r_do, r_e, r_r, r_y;
      Operands::load_values(r_do, d_o.first + 16 * step, d_o.stride, tokens, lane);
      Operands::template load<Side::kRight>(r_r, from.r + kBlock * step);
      Operands::template load<Side::kLeft>(r_y, from.y + kBlock * step);
      Square e = {};
      Operands::multiply(e[0], e[1], r_errors, r_r);
      Operands::pack(r_e, e[0], e[1]);
      Operands::multiply(r.queries[0], r.queries[1], r_do, r_e);
      Operands::multiply(r.keys[0], r.keys[1], r_y, r_e);
      typename Beside<T, K, Operands, kPairs, kMade>::Values r_beside;
      beside.load(r_beside, step);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        Block r_s, r_d;
        Operands::template load<Side::kRight>(r_s, from.states + kBlock * (pair * kSteps + step));
        Operands::template load<Side::kRight>(r_d, from.gradients + kBlock * (pair * kSteps + step));
        if (kMade == Made::kState) beside.make(r_s, pair, r_beside);
        if (kMade == Made::kGradient) beside.make(r_d, pair, r_beside);
        Operands::multiply(r.q[2 * pair], r.q[2 * pair + 1], r_do, r_s);
        Operands::multiply(r.k[2 * pair], r.k[2 * pair + 1], r_y, r_s);
        Operands::multiply(r.rest[2 * pair], r.rest[2 * pair + 1], r_e, r_d);
        Operands::add_diagonal(r.decay[pair], r_s, r_d);
      }
    }
  }
};
