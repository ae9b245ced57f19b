// fp32 arithmetic on two values at once (sm_100): half the instructions, with the same rounding as for single values.
#pragma once
#include "types.cuh"

// a · b + c
__device__ __forceinline__ float2 fma_pair(float2 a, float2 b, float2 c) {
  float2 d;
  asm("{.reg .b64 a, b, c; mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5}; mov.b64 c, {%6, %7};\n"
      "fma.rn.f32x2 a, a, b, c; mov.b64 {%0, %1}, a;}"
      : "=f"(d.x), "=f"(d.y)
      : "f"(a.x), "f"(a.y), "f"(b.x), "f"(b.y), "f"(c.x), "f"(c.y));
  return d;
}
__device__ __forceinline__ float2 add_pair(float2 a, float2 b) {
  float2 d;
  asm("{.reg .b64 a, b; mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5};\n"
      "add.rn.f32x2 a, a, b; mov.b64 {%0, %1}, a;}"
      : "=f"(d.x), "=f"(d.y)
      : "f"(a.x), "f"(a.y), "f"(b.x), "f"(b.y));
  return d;
}
__device__ __forceinline__ float2 mul_pair(float2 a, float2 b) {
  float2 d;
  asm("{.reg .b64 a, b; mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5};\n"
      "mul.rn.f32x2 a, a, b; mov.b64 {%0, %1}, a;}"
      : "=f"(d.x), "=f"(d.y)
      : "f"(a.x), "f"(a.y), "f"(b.x), "f"(b.y));
  return d;
}
