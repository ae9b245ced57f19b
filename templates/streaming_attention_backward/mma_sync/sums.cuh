// Sums of dK and dV of the same 16 keys over warps, and then over blocks, added in a fixed order.
#pragma once
#include "types.cuh"

// Groups of four sums of a lane, as in mma accumulators: all of dK, then all of dV, adjacent over 32 lanes.
template <int kN>
struct Sums {
  static constexpr int kQuads = 2 * kN * 32;  // quads per block

  // Stores the sums of a warp, at s_sums[quad].
  static __device__ __forceinline__ void write(float4* s_sums, float const (&r_dk)[1][kN][4],
                                               float const (&r_dv)[1][kN][4], int lane) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      s_sums[n * 32 + lane] = make_float4(r_dk[0][n][0], r_dk[0][n][1], r_dk[0][n][2], r_dk[0][n][3]);
      s_sums[(kN + n) * 32 + lane] = make_float4(r_dv[0][n][0], r_dv[0][n][1], r_dv[0][n][2], r_dv[0][n][3]);
    }
  }
  // The total of kParts parts, `stride` quads apart.
  template <int kParts>
  static __device__ __forceinline__ float4 total(float4 const* parts, int64_t stride) {
    float4 sum = parts[0];
#pragma unroll 8
    for (int part = 1; part < kParts; ++part) {
      float4 const next = parts[part * stride];
      sum.x += next.x;
      sum.y += next.y;
      sum.z += next.z;
      sum.w += next.w;
    }
    return sum;
  }
};
