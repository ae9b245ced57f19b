// What a launcher takes of CUDA's driver: a tensor map holds what it was encoded of, as text.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

using cuuint64_t = uint64_t;
using cuuint32_t = uint32_t;
enum CUresult { CUDA_SUCCESS };
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_INT32 = 3,
  CU_TENSOR_MAP_DATA_TYPE_INT64 = 5,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
};
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE,
  CU_TENSOR_MAP_SWIZZLE_32B,
  CU_TENSOR_MAP_SWIZZLE_64B,
  CU_TENSOR_MAP_SWIZZLE_128B,
};
enum { CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };
struct CUtensorMap;

template <class T>
std::string listed(T const* values, int count) {
  std::string found;
  for (int i = count; i-- > 0;) found += std::to_string(values[i]) + (i ? "," : "");
  return found;
}

inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, int rank, void* address,
                                       cuuint64_t const* dims, cuuint64_t const* strides, cuuint32_t const* box,
                                       cuuint32_t const*, int, CUtensorMapSwizzle swizzle, int, int) {
  std::snprintf(reinterpret_cast<char*>(map), 256, "%d;%zu;%s;%s;%s;%d", type, reinterpret_cast<size_t>(address),
                listed(dims, rank).c_str(), listed(strides, rank - 1).c_str(), listed(box, rank).c_str(), swizzle);
  return CUDA_SUCCESS;
}
