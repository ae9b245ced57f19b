"""What a warp of an attention kernel issues for one tile of keys, once no mask cuts it and no maximum grows.

python benchmarks/attention_slots.py

Counted in the machine code of the defaults, along the way through the main loop that `tuner inspect --waits` replays:
without the detours that hide scores, raise maxima or scale sums. `tensor` is for how many cycles the tile's matrix
instructions keep a tensor core busy, at the rate of an A100 for mma.sync (8 a m16n8k16) and of an H100 for wgmma (N / 2
a m64nNk16). To compare tiles that differ in size, take `issued / mufu`: a lane has an exponential for each of its
scores. The way through `wgmma_once` makes a part of dQ, which a warpgroup does for every second tile. Nothing here is a
time.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner import nvrtc, operators, sass
from tuner.arch import ARCHES
from tuner.cubin import Cubin
from tuner.render import render
from tuner.timeline_paths import paths
from tuner.toolkit import Options

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
    source = render(operator, kernel, problem, kernel.default(problem, ARCHES[arch]))
    cubin = nvrtc.compile(source, Options(arch))
    assert isinstance(cubin, Cubin), cubin
    for entry in cubin.entries:
        code = cubin.code(entry)
        if any(each.mnemonic in MATRIX for each in sass.decode(code, arch)):
            yield entry, steady_tile(code, arch)


def steady_tile(code: bytes, arch: str) -> Tile:
    steady = b"".join(code[16 * index : 16 * index + 16] for index in steady_path(code, arch))
    mix = sass.instruction_mix(steady, arch)
    issued = Counter({kind: int(sum(mix[each] for each in names)) for kind, names in by_kind(mix).items()})
    return Tile(issued, sum(count * tensor_cycles(each) for each, count in mix.items()))


def by_kind(mix: Mapping[str, int]) -> Mapping[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in mix:
        (kind,) = sass.work_mix({each: 1})
        found[kind].append(each)
    return found


def tensor_cycles(name: str) -> float:
    base, _, shape = name.partition(".")
    if base == "HGMMA":
        return int(shape.split("x")[1]) / 2
    return {"16816": 8.0, "1688": 4.0}[shape] if base == "HMMA" else 0.0


def steady_path(code: bytes, arch: str) -> tuple[int, ...]:
    """Instructions of the shortest way through a loop with products and exponentials, by index."""
    instructions = sass.decode(code, arch)
    found = [path.indices for path in paths(instructions) if path.repeats]
    return min((each for each in found if attends([instructions[index].mnemonic for index in each])), key=len)


def attends(mnemonics: Sequence[str]) -> bool:
    return mnemonics.count("MUFU") >= 8 and any(each in MATRIX for each in mnemonics)


if __name__ == "__main__":
    main()
