// The special function unit: correctly rounded here, subnormals flushed where the instruction flushes them.
#pragma once
#include "types.cuh"

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__forceinline__ float flush_subnormal(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }

__forceinline__ float exp2_approx(float x) { return flush_subnormal(exp2f(x)); }
__forceinline__ float log2_approx(float x) { return log2f(flush_subnormal(x)); }
__forceinline__ float rcp_approx(float x) { return flush_subnormal(1.0f / flush_subnormal(x)); }
__forceinline__ float tanh_approx(float x) { return tanhf(x); }
