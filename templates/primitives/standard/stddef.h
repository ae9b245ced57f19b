// ptrdiff_t in std; size_t is a built-in.
#pragma once
typedef decltype((char*)0 - (char*)0) ptrdiff_t;

namespace std {
using ::ptrdiff_t;
using ::size_t;
}  // namespace std
