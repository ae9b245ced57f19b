"""What a warp of an attention kernel issues for one tile of keys, once no mask cuts it and no maximum grows.

python benchmarks/attention_slots.py

Counted in the machine code of the defaults, along the main loop's common way, as the prediction does: what only hides
scores, scales sums or raises maxima is left out. `tensor` is for how many cycles the tile's matrix instructions keep a
tensor core busy, at the rate of an A100 for mma.sync (8 a m16n8k16) and of an H100 for wgmma (N / 2 a m64nNk16). To
compare tiles that differ in size, take `issued / mufu`: a lane has an exponential for each of its scores. The loop of
`wgmma_once` is counted with a part of dQ, which a warpgroup makes for every second tile. Nothing here is a time.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner import operators
from tuner.arch import ARCHES
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.sass import decode as sass
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.sass.paths import common_way
from tuner.compiler.toolkit import Options
from tuner.spec.instance import Instance

DECODING = {"batch": 1, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 8192}
KERNELS = (  # operator, implementation, arch, sizes
    ("flash_attention", "mma_sync", "sm_80", {}),
    ("flash_attention", "mma_sync", "sm_90a", {}),
    ("flash_attention", "mma_sync", "sm_120a", {}),
    ("flash_attention", "wgmma", "sm_90a", {}),
    ("flash_attention", "split_keys", "sm_80", DECODING),
    ("flash_attention", "split_keys", "sm_90a", DECODING),
    ("flash_attention_backward", "mma_sync", "sm_90a", {}),
    ("flash_attention_backward", "wgmma", "sm_90a", {}),
    ("flash_attention_backward", "wgmma_once", "sm_90a", {}),
)
MATRIX = ("HMMA", "HGMMA")
COLUMNS = ("mma", "shared", "mufu", "fma", "alu", "uniform", "copy", "lanes", "order", "control")


@dataclass(frozen=True, slots=True)
class Tile:
    """A warp's instructions of one tile, by class of `sass.work_mix`; `mma` in instructions."""

    issued: Counter[str]
    tensor_cycles: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 72, 128, 256])
    parser.add_argument("--causal", action="store_true")
    given = parser.parse_args()
    print(f"| kernel | arch | D | issued | {' | '.join(COLUMNS)} | tensor | issued / tensor | issued / mufu |")
    print("|---" * (len(COLUMNS) + 7) + "|")
    for name, implementation, arch, sizes in KERNELS:
        for D in given.head_dims:
            for entry, tile in tiles(name, implementation, arch, {"head_dim": D, "causal": given.causal, **sizes}):
                total = sum(tile.issued.values())
                counts = " | ".join(str(tile.issued[each]) for each in COLUMNS)
                tensor = f"{tile.tensor_cycles:.0f} | {total / tile.tensor_cycles:.2f}"
                kernel = entry.removeprefix("flash_attention_")
                print(
                    f"| {kernel} | {arch} | {D} | {total} | {counts} | {tensor} | {total / tile.issued['mufu']:.1f} |"
                )


def tiles(name: str, implementation: str, arch: str, sizes: dict[str, int]) -> Iterator[tuple[str, Tile]]:
    """Of each entry that has matrix products in a loop."""
    operator, kernel = operators.load(name), operators.implementation(name, implementation)
    problem = operator.problem(**sizes)
    if kernel.refusal(problem, ARCHES[arch]):
        return
    source = render(Instance.default(operator, kernel, problem, ARCHES[arch]))
    cubin = nvrtc.compile(source, Options(arch), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    for entry in cubin.entries:
        code = cubin.code(entry)
        if any(each.mnemonic in MATRIX for each in sass.decode(code, arch)):
            yield entry, steady_tile(code, arch)


def steady_tile(code: bytes, arch: str) -> Tile:
    instructions = sass.decode(code, arch)
    way = common_way(instructions, *min(loops(instructions, arch), key=lambda loop: loop[1] - loop[0]))
    issued: Counter[str] = Counter()
    cycles = 0.0
    for each, count in sass.mix_of((instructions[index].word for index in way), arch).items():
        (kind,) = sass.work_mix({each: 1}).keys() - {"paired"}
        issued[kind] += count
        cycles += count * tensor_cycles(each)
    return Tile(issued, cycles)


def tensor_cycles(name: str) -> float:
    base, _, shape = name.partition(".")
    if base == "HGMMA":
        return int(shape.split("x")[1]) / 2
    return {"16816": 8.0, "1688": 4.0}[shape] if base == "HMMA" else 0.0


def loops(instructions: Sequence[Instruction], arch: str) -> Iterator[tuple[int, int]]:
    """(first, last) instruction of each loop with products and exponentials."""
    for index, each in enumerate(instructions):
        if each.target is not None and each.target <= index:
            mix = sass.mix_of((inside.word for inside in instructions[each.target : index + 1]), arch)
            if mix.get("MUFU.EX2", 0) >= 8 and any(name.startswith(MATRIX) for name in mix):
                yield each.target, index


if __name__ == "__main__":
    main()
