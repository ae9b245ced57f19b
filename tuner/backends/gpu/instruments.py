"""Auxiliary kernels for measuring: one holds a stream, one reads memory, one is empty.

Work queued on a held stream does not start until the host releases it. The holding kernel also reads the device clock
and gives up after a limit, so that a host that waits for the device, or that dies, causes no hang. The driver's
cuStreamWaitValue32 has no such limit.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tuner.backends import gpu
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.errors import MachineError
from tuner.results.attempt import Failed

HOLD, READ, IDLE = "tuner_hold", "tuner_read", "tuner_idle"
LIMIT_S = 1.0  # maximum time that a stream is held; queueing takes milliseconds

_MAPPED = 2  # cudaHostAllocMapped; on 64-bit Linux the device uses the same addresses
_LINE = 128  # distance in bytes between two words, so that they lie in different cache lines
# Launch shape of a read, and bytes per load: enough loads in flight for any memory.
_BLOCKS, _THREADS, _WIDTH = 1024, 256, 16
SOURCE = Source(
    (HOLD, READ, IDLE),
    """\
__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// One thread. Ends once *released is `ticket`; after limit_ns it says so in *expired and ends as well.
extern "C" __global__ void tuner_hold(unsigned const volatile* released, unsigned volatile* expired, unsigned ticket,
                                      unsigned long long limit_ns) {
  unsigned long long const begin = now_ns();
  while (*released != ticket) {
    if (now_ns() - begin > limit_ns) {
      *expired = ticket;
      return;
    }
    __nanosleep(200);
  }
}

// Reads `count` words that are all 0, so that nothing is written; the compiler cannot know.
extern "C" __global__ void tuner_read(uint4 const* words, unsigned long long count, unsigned* never) {
  unsigned long long const step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned any = 0;
  unsigned long long const first = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (unsigned long long i = first; i < count; i += step) {
    uint4 const word = words[i];
    any |= word.x | word.y | word.z | word.w;
  }
  if (any != 0) *never = any;
}

// A parameter, since CuPy takes the address of the first one of any launch.
extern "C" __global__ void tuner_idle(unsigned) {}
""",
    (),
    "cuda",
)


class Instruments:
    """The auxiliary kernels, loaded into the current device's context. All of them use the default stream."""

    def __init__(self, arch: str) -> None:
        """Raise MachineError if there is no compiler for the arch."""
        cuda = gpu.opened().cuda
        module = cuda.Module()
        module.load(_image(arch))
        self._hold, self._read, self._idle = (module.get_function(entry) for entry in SOURCE.entries)
        self._words = int(cuda.runtime.hostAlloc(3 * _LINE, _MAPPED))  # never freed
        ctypes.memset(self._words, 0, 3 * _LINE)
        self._released, self._expired = (ctypes.c_uint32.from_address(self._words + n * _LINE) for n in (0, 1))
        self._ticket = 0
        self._load_all()
        # Streams cannot be held if each launch is synchronous, as with CUDA_LAUNCH_BLOCKING and in profilers.
        self.holds = not self.expired

    def _load_all(self) -> None:
        """Load every kernel by launching it once.

        A driver that loads kernels lazily may wait for the device, which would block while the stream is held.
        """
        self.read(self._words, 0)
        self.idle()
        with self.held():
            pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the default stream inside the `with` block; all work queued inside starts when it ends. See
        `expired`.
        """
        self._ticket += 1
        arguments = (
            np.uint64(self._words),
            np.uint64(self._words + _LINE),
            np.uint32(self._ticket),
            np.uint64(1e9 * LIMIT_S),
        )
        self._hold((1, 1, 1), (1, 1, 1), arguments, 0, None)
        try:
            yield
        finally:
            self._released.value = self._ticket

    @property
    def expired(self) -> bool:
        """Return whether the hold ended by its limit before the last release. Call it after the held work has run."""
        return int(self._expired.value) == self._ticket

    def read(self, address: int, nbytes: int) -> None:
        """Queue a read of zero-filled memory."""
        arguments = np.uint64(address), np.uint64(nbytes // _WIDTH), np.uint64(self._words + 2 * _LINE)
        self._read((_BLOCKS, 1, 1), (_THREADS, 1, 1), arguments, 0, None)

    def idle(self, stream: Any = None) -> None:
        """Queue an empty kernel on the default stream or another one."""
        self._idle((1, 1, 1), (32, 1, 1), (np.uint32(0),), 0, stream)


def _image(arch: str) -> bytes:
    outcome = nvrtc.compile(SOURCE, Options(arch), Cache.of("cubin"))
    if isinstance(outcome, Failed):
        raise MachineError(f"the kernels that measuring needs do not compile for {arch}: {outcome.reason}")
    return outcome.image
