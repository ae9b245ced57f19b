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

// kInFlight: steps of 16 values whose loads are on their way at once; kAhead: one, and the next step's besides.
template <class T, int K, int V, class Operands, int kPairs, int kInFlight, bool kAhead>
struct ValueSums {
  static_assert(!kAhead || kInFlight == 1, "two steps at once leave no registers for a third");

  using Image = ::Image<K, Operands>;
  using Block = typename Operands::Block;
  using Sums = ::Sums<Operands, kPairs>;
  static constexpr int kSteps = V / 16, kBlock = Operands::kBlock;

  int lane, tokens;
  Scanned from;
  View<T const> d_o;
  unsigned char const* image;

  // What is read of 16 values but the gradients of the state, which are wanted last.
  struct Values {
    Block d_o, errors, y, states[kPairs];
  };
  __device__ __forceinline__ void load(Values& r, int step, bool there = true) const {
    Operands::load_values(r.d_o, d_o.first + 16 * step, d_o.stride, there ? tokens : 0, lane);
    Operands::template load<Side::kRight>(r.errors, from.r + kBlock * step, there);
    Operands::template load<Side::kLeft>(r.y, from.y + kBlock * step, there);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
      Operands::template load<Side::kRight>(r.states[pair], from.states + kBlock * (pair * kSteps + step), there);
  }

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
    if constexpr (kAhead) {
      Values r_even, r_odd;
      load(r_even, 0);
#pragma unroll 1
      for (int step = 0; step < steps; step += 2) {
        bool const second = kSteps % 2 == 0 || step + 1 < steps;
        add(r, beside, r_errors, r_even, step, [&] { load(r_odd, step + 1, second); });
        if (!second) break;
        add(r, beside, r_errors, r_odd, step + 1, [&] { load(r_even, step + 2, step + 2 < steps); });
      }
    } else {
#pragma unroll kInFlight
      for (int step = 0; step < steps; ++step) {
        Values r_values;
        load(r_values, step);
        add(r, beside, r_errors, r_values, step, [] {});
      }
    }
  }
  // Of 16 values. `load_next` stands behind the first product, which has waited for `x`: loads that are under way by
  // then would be waited for with it, because ptxas counts all of them in one scoreboard.
  template <Made kMade, class Next>
  __device__ __forceinline__ void add(Sums& r, Beside<T, K, Operands, kPairs, kMade> const& beside,
                                      Block const& r_errors, Values& x, int step, Next const& load_next) const {
    Square e = {};
    Operands::multiply(e[0], e[1], r_errors, x.errors);
    Block r_e, r_gradients[kPairs];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
      Operands::template load<Side::kRight>(r_gradients[pair], from.gradients + kBlock * (pair * kSteps + step));
    typename Beside<T, K, Operands, kPairs, kMade>::Values r_beside;
    beside.load(r_beside, step);
    if (kAhead) __syncwarp();
    load_next();
    Operands::pack(r_e, e[0], e[1]);
    Operands::multiply(r.queries[0], r.queries[1], x.d_o, r_e);
    Operands::multiply(r.keys[0], r.keys[1], x.y, r_e);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Block &r_s = x.states[pair], &r_d = r_gradients[pair];
      if (kMade == Made::kState) beside.make(r_s, pair, r_beside);
      if (kMade == Made::kGradient) beside.make(r_d, pair, r_beside);
      Operands::multiply(r.q[2 * pair], r.q[2 * pair + 1], x.d_o, r_s);
      Operands::multiply(r.k[2 * pair], r.k[2 * pair + 1], x.y, r_s);
      Operands::multiply(r.rest[2 * pair], r.rest[2 * pair + 1], r_e, r_d);
      Operands::add_diagonal(r.decay[pair], r_s, r_d);
    }
  }
};
