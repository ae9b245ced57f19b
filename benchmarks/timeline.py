"""The replay of machine code (`tuner inspect --waits`) beside what others measured of kernels like ours.

python benchmarks/timeline.py

`mma_sync` of flash_attention is built like FlashAttention-2. Of both this prints the share of the tensor cores' rate:
`predicted`, of our main loop with the warps that an SM holds, and `published`, the TFLOP/s of FlashAttention-2 (of
lubits.ch: within 3 %) over the rate of `tuner.arch`, forward and not causal. What a block starts and ends with, and
clocks below the boost, are in what was published alone.
"""

from dataclasses import dataclass, replace

from tuner import operators
from tuner.arch import GPU, gpu
from tuner.base.cache import Cache
from tuner.cli.commands.inspect_waits import waiting
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.spec.instance import Instance

SIZES = {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": 4096, "seq_k": 4096}


@dataclass(frozen=True, slots=True)
class Published:
    """TFLOP/s of FlashAttention-2 at one head_dim."""

    gpu: str
    head_dim: int
    BN: int  # its tile's; ours has the same 128 rows and four warps
    tflops: float
    source: str


PUBLISHED = (
    Published("A100", 128, 64, 186.4, "lubits.ch/flash"),
    Published("RTX 3090", 128, 32, 67.3, "lubits.ch/flash"),
    Published("RTX 5090", 128, 64, 190.6, "gau-nernst.github.io/fa-5090"),
    Published("H100", 64, 128, 324.0, "FlashAttention-3, arXiv 2407.08608"),
    Published("H100", 128, 64, 370.0, "FlashAttention-3, arXiv 2407.08608"),
)


def main() -> None:
    print("| GPU | D | BN | predicted, our default | predicted, with its BN | published | source |")
    print("|---|---|---|---|---|---|---|")
    for each in PUBLISHED:
        target = gpu(each.gpu)
        shares = (predicted(target, each.head_dim, BN) for BN in (None, each.BN))
        cells = " | ".join("does not fit" if share is None else f"{share:.0%}" for share in shares)
        published = each.tflops / peak_tflops(target)
        print(f"| {each.gpu} | {each.head_dim} | {each.BN} | {cells} | {published:.0%} | {each.source} |")


def peak_tflops(target: GPU) -> float:
    """Of mma.sync in 16-bit types."""
    return target.device.mma_flops * target.device.sm_count * target.device.clock_mhz * 1e-6


def predicted(target: GPU, head_dim: int, BN: int | None) -> float | None:
    """Clocks of the tensor cores over those of the main loop; None where the space has no such tile."""
    operator, kernel = operators.load("flash_attention"), operators.implementation("flash_attention", "mma_sync")
    problem = operator.problem(head_dim=head_dim, **SIZES)
    default = kernel.default(problem, target.arch)
    space = kernel.space(problem, target.arch)
    wanted = [default] if BN is None else [replace(default, BN=BN, smem_budget=n) for n in space.choices["smem_budget"]]
    config = next((each for each in wanted if not space.refusals(each)), None)
    if config is None:
        return None
    instance = Instance(operator, kernel, problem, config)
    cubin = nvrtc.compile(render(instance), Options(target.arch.name), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    (kernel_waits,) = waiting(cubin, instance.plan().launches, target)
    loop = max((each for each in kernel_waits.paths if each.path.repeats), key=lambda each: each.pipes.get("tensor", 0))
    return loop.pipes["tensor"] / loop.together


if __name__ == "__main__":
    main()
