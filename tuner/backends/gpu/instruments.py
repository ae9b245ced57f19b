"""Kernels that measuring needs beside those that are measured: one that holds a stream, one that reads, one that idles.

A stream that is held begins nothing of what the host puts on it until the host lets go. The kernel that holds it looks
at its own clock too and gives up after a limit, whatever the host does meanwhile: a host that waits for the device, or
dies, is no host that hangs. The driver's own cuStreamWaitValue32 would wait for ever.
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
LIMIT_S = 1.0  # what a stream is held for at most: to queue what is timed together takes milliseconds

_MAPPED = 2  # cudaHostAllocMapped; addresses are the device's too, as all are on 64-bit Linux
_LINE = 128  # bytes between two words, so that writing one does not evict the other from a cache
_BLOCKS, _THREADS, _WIDTH = 1024, 256, 16  # of a read: enough loads in flight for any memory; bytes of one load
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
    """The kernels, loaded into the context of the current device. All of them go to the default stream."""

    def __init__(self, arch: str) -> None:
        """Raises MachineError where there is no compiler for the arch."""
        cuda = gpu.opened().cuda
        module = cuda.Module()
        module.load(_image(arch))
        self._hold, self._read, self._idle = (module.get_function(entry) for entry in SOURCE.entries)
        self._words = int(cuda.runtime.hostAlloc(3 * _LINE, _MAPPED))  # for as long as the process lives
        ctypes.memset(self._words, 0, 3 * _LINE)
        self._released, self._expired = (ctypes.c_uint32.from_address(self._words + n * _LINE) for n in (0, 1))
        self._ticket = 0
        self._load_all()
        # Not where each launch waits for the device, as under CUDA_LAUNCH_BLOCKING and in profilers.
        self.holds = not self.expired

    def _load_all(self) -> None:
        """A driver that loads kernels when they are first launched may wait for the device to do so: not while it is
        held.
        """
        self.read(self._words, 0)
        self.idle()
        with self.held():
            pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is put on the default stream in here begins when this ends, all of it queued; see `expired`."""
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
        """Whether the device did not wait for the last release. Asked when what was held has run."""
        return int(self._expired.value) == self._ticket

    def read(self, address: int, nbytes: int) -> None:
        """Queue a read of memory that is all 0."""
        arguments = np.uint64(address), np.uint64(nbytes // _WIDTH), np.uint64(self._words + 2 * _LINE)
        self._read((_BLOCKS, 1, 1), (_THREADS, 1, 1), arguments, 0, None)

    def idle(self, stream: Any = None) -> None:
        """Queue a kernel that does nothing, on the default stream or another."""
        self._idle((1, 1, 1), (32, 1, 1), (np.uint32(0),), 0, stream)


def _image(arch: str) -> bytes:
    outcome = nvrtc.compile(SOURCE, Options(arch), Cache.of("cubin"))
    if isinstance(outcome, Failed):
        raise MachineError(f"the kernels that measuring needs do not compile for {arch}: {outcome.reason}")
    return outcome.image
