"""How long each pipe of a B200's SM takes for 128 queries and 128 keys of a kernel on tcgen05, from declared work.

python benchmarks/tcgen05_pipes.py --head-dims 64 72 128
python benchmarks/tcgen05_pipes.py --operator flash_attention_backward --head-dims 64 72 128
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from tuner import operators
from tuner.arch import gpu
from tuner.spec.operator import Work

B200 = gpu("B200")
ROWS = KEYS = 128
SEQ = 16384  # so many keys that a tile on the edge does not show
PIPES = {  # clocks of an SM, by the rates of the prediction
    "products": lambda work: work.tcgen05 * 4096 / B200.device.tcgen05_flops,
    "exponentials": lambda work: work.mufu * 32 / 16,
    "fp32": lambda work: work.fma * 32 / B200.arch.fp32_lanes,
    "issue": lambda work: (work.fma - work.paired / 2 + work.mufu + work.alu) / 4,
    "shared memory": lambda work: work.smem_wavefronts,
}
# Of the config of a launch that multiplies, by its place in the plan: what the table shows.
SHOWN = {
    "flash_attention": {0: ("BN", "row_tiles", "polynomial")},
    "flash_attention_backward": {
        1: ("BM_kv", "kv_row_tiles", "kv_polynomial"),
        2: ("BN_q", "q_row_tiles", "q_polynomial"),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", choices=SHOWN, default="flash_attention")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 72, 96, 128, 192, 256])
    asked = parser.parse_args()
    print("| D | tile, row tiles, polynomial |", " | ".join(PIPES), "| exponentials without polynomials |")
    print("|---|---|" + "---|" * (len(PIPES) + 1))
    for D in asked.head_dims:
        for row in rows(asked.operator, D):
            print(row)


def rows(name: str, D: int) -> Iterator[str]:
    implementation = operators.implementation(name, "tcgen05")
    problem = operators.load(name).problem(head_dim=D, batch=1, heads=1, seq_q=SEQ)
    config = implementation.default(problem, B200.arch)
    launches = implementation.plan(problem, config).launches
    for launch, names in SHOWN[name].items():
        which = f" {launches[launch].entry.rpartition('_')[2]}" if len(launches) > 1 else ""
        found, plain = (
            clocks_of(implementation.work(problem, each, B200)[launch])
            for each in (config, replace(config, **{names[-1]: 0}))
        )
        cells = [f"{found[pipe]:.0f}" for pipe in PIPES] + [f"{plain['exponentials']:.0f}"]
        yield f"| {D}{which} | {', '.join(str(getattr(config, each)) for each in names)} | " + " | ".join(cells) + " |"


def clocks_of(work: Work) -> dict[str, float]:
    tiles = (SEQ / ROWS) * (SEQ / KEYS)
    return {pipe: clocks(work) / tiles for pipe, clocks in PIPES.items()}


if __name__ == "__main__":
    main()
