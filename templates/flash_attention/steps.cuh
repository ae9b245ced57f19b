// Which steps of 16 keys of a tile a warp visits: asked before each step, and as a bool, whether there is any.
#pragma once

struct EveryStep {
  __device__ __forceinline__ constexpr bool operator()(int) const { return true; }
  __device__ __forceinline__ constexpr explicit operator bool() const { return true; }
};
