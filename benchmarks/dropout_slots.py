"""What dropout as torch counts it would add to an attention kernel: instructions a score, in machine code.

python benchmarks/dropout_slots.py

Philox 4x32-10 (Salmon et al., SC 2011) draws 128 bits from a seed and a counter, and a byte of these decides on a
score, as flash-attn has it. Counted is a kernel that drops 16 scores of a lane, less one that copies them. Beside it
stands what the forward pass issues for each exponential (attention_slots.py): a lane has one for each score. The
backward pass draws them twice more, once for dK and dV and once for dQ. Nothing here is a time.
"""

from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.sass.decode import instruction_mix
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.results.attempt import Failed

SCORES = 16
ARCHES = ("sm_80", "sm_90a", "sm_120a")
TEXT = r"""
struct Words { unsigned x, y, z, w; };
__device__ __forceinline__ Words drawn(unsigned long long seed, unsigned long long counter, unsigned row) {
  Words c{unsigned(counter), unsigned(counter >> 32), row, 0};
  unsigned key0 = unsigned(seed), key1 = unsigned(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    unsigned long long const a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
    c = {unsigned(b >> 32) ^ c.y ^ key0, unsigned(b), unsigned(a >> 32) ^ c.w ^ key1, unsigned(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}
extern "C" __global__ void scores(float* out, float const* in, unsigned long long seed, unsigned long long counter,
                                  unsigned kept, float scale) {
  float4 const* from = reinterpret_cast<float4 const*>(in) + threadIdx.x * 4;
  float4* to = reinterpret_cast<float4*>(out) + threadIdx.x * 4;
  float4 quad[4] = {from[0], from[1], from[2], from[3]};
#if DROPS
  Words const words = drawn(seed, counter, threadIdx.x);
  unsigned const word[4] = {words.x, words.y, words.z, words.w};
  float* score = reinterpret_cast<float*>(quad);
#pragma unroll
  for (int i = 0; i < 16; ++i) score[i] = ((word[i / 4] >> i % 4 * 8) & 255) <= kept ? score[i] * scale : 0;
#endif
  for (int i = 0; i < 4; ++i) to[i] = quad[i];
}
"""


def main() -> None:
    print("| arch | for 16 scores | a score |\n|---|---|---|")
    for arch in ARCHES:
        added = _instructions(arch, drops=True) - _instructions(arch, drops=False)
        print(f"| {arch} | {added} | {added / SCORES:.1f} |")


def _instructions(arch: str, *, drops: bool) -> int:
    source = Source(("scores",), f"#define DROPS {int(drops)}\n{TEXT}", (), "cuda")
    cubin = nvrtc.compile(source, Options(arch), Cache.of("cubin"))
    if isinstance(cubin, Failed):
        raise SystemExit(cubin.log)
    mix = instruction_mix(cubin.code("scores"), arch)
    return sum(count for name, count in mix.items() if name not in ("NOP", "BRA"))


if __name__ == "__main__":
    main()
