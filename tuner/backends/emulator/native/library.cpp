// Loading and unloading of kernels' shared objects, so that one process can run thousands of them.
#include <dlfcn.h>

#include <cstdio>

#include "runtime_api.h"

namespace emulator {

// Returns null, with the reason in `error`, if loading fails.
extern "C" EMULATOR_API void* emulator_open(char const* path, char* error, size_t error_bytes) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) std::snprintf(error, error_bytes, "%s", dlerror());
  return library;
}
extern "C" EMULATOR_API void* emulator_symbol(void* library, char const* name) { return dlsym(library, name); }
extern "C" EMULATOR_API void emulator_close(void* library) { dlclose(library); }

// Offset of an instruction in its shared object, and the object's path; 0 if there is none.
extern "C" EMULATOR_API uint64_t emulator_offset(void const* instruction, char* path, size_t path_bytes) {
  Dl_info info;
  if (!dladdr(instruction, &info) || !info.dli_fname) return 0;
  std::snprintf(path, path_bytes, "%s", info.dli_fname);
  return uint64_t(static_cast<char const*>(instruction) - static_cast<char const*>(info.dli_fbase));
}

}  // namespace emulator
