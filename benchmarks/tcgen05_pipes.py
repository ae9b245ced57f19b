"""How long each pipe of a B200's SM takes for 128 queries and 128 keys of flash_attention/tcgen05, from declared work.

python benchmarks/tcgen05_pipes.py --head-dims 64 72 128
"""

import argparse
from dataclasses import replace

from tuner import operators
from tuner.arch import gpu
from tuner.operator import Work

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 72, 96, 128, 192, 256])
    print("| D | BN, row tiles, polynomial |", " | ".join(PIPES), "| exponentials without polynomials |")
    print("|---|---|" + "---|" * (len(PIPES) + 1))
    for D in parser.parse_args().head_dims:
        print(row(D))


def row(D: int) -> str:
    implementation = operators.implementation("flash_attention", "tcgen05")
    problem = operators.load("flash_attention").problem(head_dim=D, batch=1, heads=1, seq_q=SEQ)
    config = implementation.default(problem, B200.arch)
    tiles = (SEQ / ROWS) * (SEQ / KEYS)
    found, plain = (
        {name: clocks(declared(problem, each)) / tiles for name, clocks in PIPES.items()}
        for each in (config, replace(config, polynomial=0))
    )
    cells = [f"{found[name]:.0f}" for name in PIPES] + [f"{plain['exponentials']:.0f}"]
    return f"| {D} | {config.BN}, {config.row_tiles}, {config.polynomial} | " + " | ".join(cells) + " |"


def declared(problem: object, config: object) -> Work:
    (work,) = operators.implementation("flash_attention", "tcgen05").work(problem, config, B200)
    return work


if __name__ == "__main__":
    main()
