// Sums of dK and dV that warps, and then blocks, have of the same 16 keys: added up in one order, whichever comes
// first.
#pragma once
#include "types.cuh"

// Four sums of a lane, as an mma leaves them: all of dK, then all of dV, 32 lanes side by side.
template <int kN>
struct Sums {
  static constexpr int kQuads = 2 * kN * 32;  // of a block

  // Those of a warp, at s_sums[quad].
  static __device__ __forceinline__ void write(float4* s_sums, float const (&r_dk)[1][kN][4],
                                               float const (&r_dv)[1][kN][4], int lane) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      s_sums[n * 32 + lane] = make_float4(r_dk[0][n][0], r_dk[0][n][1], r_dk[0][n][2], r_dk[0][n][3]);
      s_sums[(kN + n) * 32 + lane] = make_float4(r_dv[0][n][0], r_dv[0][n][1], r_dv[0][n][2], r_dv[0][n][3]);
    }
  }
  // Of kParts parts, `stride` quads apart.
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
