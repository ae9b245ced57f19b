// fp32 arithmetic on two values at once, rounded as for single values.
#pragma once
#include "types.cuh"

// a · b + c
__forceinline__ float2 fma_pair(float2 a, float2 b, float2 c) { return {fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y)}; }
__forceinline__ float2 add_pair(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__forceinline__ float2 mul_pair(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
