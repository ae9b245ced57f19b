"""C++ text shared by all standalone files: inlined headers, and helper functions of launchers."""

import re
from collections.abc import Iterator, Sequence

from tuner.compiler.source import Source, includes, without_includes

_GLOBAL = re.compile(r"(?<![\w>):])::(?=[A-Za-z_])")  # names that a header qualifies with the global namespace

QUIET = "#pragma nv_diag_suppress 177  // headers define more than a kernel uses"
OWN_NAMES = ("p", "stream", "workspace", "space", "error", "aligned", "ceil_div", "floor_div", "encode", "dim3")
HELPERS = """\
// Device memory for a kernel's parameter, of whatever type that is.
struct Pointer {
  void const* address;
  template <class T>
  operator T*() const { return static_cast<T*>(const_cast<void*>(address)); }
};
[[maybe_unused]] static long long floor_div(long long a, long long b) { return a / b - (a % b < 0); }
[[maybe_unused]] static long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
[[maybe_unused]] static long long aligned(long long bytes) { return (bytes + 255) / 256 * 256; }
"""
ENCODE = """\
// How TMA sees a tensor. Dims, strides (in elements) and the box outermost first.
template <int N>
static cudaError_t encode(void* map, CUtensorMapDataType type, int size, void const* data, long long const (&dims)[N],
                          long long const (&strides)[N], long long const (&box)[N], CUtensorMapSwizzle swizzle) {
  cuuint64_t shape[N], bytes[N];
  cuuint32_t part[N], ones[N];
  for (int i = 0; i < N; ++i) {
    int const axis = N - 1 - i;
    shape[i] = dims[axis], part[i] = box[axis], ones[i] = 1;
    bytes[i] = strides[axis] * size;
    // Nobody walks a dim of size 1, but TMA judges its stride.
    if (i > 0 && dims[axis] == 1) bytes[i] = (bytes[i - 1] * shape[i - 1] + 15) / 16 * 16;
  }
  CUresult const status = cuTensorMapEncodeTiled(
      static_cast<CUtensorMap*>(map), type, N, const_cast<void*>(data), shape, bytes + 1, part, ones,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
"""


def flat(source: Source) -> str:
    """Return the text with all headers inlined; kernels keep their C++ names."""
    headers, placed = dict(source.headers), dict[str, str]()

    def add(name: str, text: str) -> None:
        for include in includes(text):
            if include.quoted and include.name not in placed:
                placed[include.name] = ""  # placed after the headers that it includes
                add(include.name, headers[include.name])
        placed.pop(name, None)
        placed[name] = f"// ---- {name}\n" + re.sub(r"^#pragma once\n", "", without_includes(text), flags=re.MULTILINE)

    add("kernels", source.text)
    text = re.sub(r'extern "C"\s+(?=__global__)', "", "\n".join(placed.values()))
    return _GLOBAL.sub("kernels::", text)


def foreign(source: Source) -> list[str]:
    """Return the includes of third-party headers, which must be outside all namespaces."""
    texts = (source.text, *(text for _, text in source.headers))
    return list(dict.fromkeys(include.line for text in texts for include in includes(text) if not include.quoted))


def filled(words: Sequence[str]) -> Iterator[str]:
    """Wrap the arguments of a call in lines of at most 110 columns."""
    line = "     "
    for i, word in enumerate(words):
        word += "," if i + 1 < len(words) else ");"
        if len(line) + len(word) > 109:
            yield line
            line = "     "
        line += " " + word
    yield line
