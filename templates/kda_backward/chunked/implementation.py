"""kda_backward in four launches on mma.sync (sm_80 and up): two scans between launches that are parallel over
chunks."""

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, Constraint, DType, Implementation, Launch, Plan, Space, Workspace, limits

from ..gate_gradients import gate_constants, gate_launch, gate_sums
from ..problem import Problem
from .config import (
    CHUNK,
    WARP,
    Config,
    gradient_registers,
    gradient_smem_bytes,
    gradient_threads,
    image_of,
    prepare_registers,
    prepare_smem_bytes,
    scan_registers,
    scan_smem_bytes,
    scan_threads,
)
from .work import chunks, work

_SCANNED = ("states", "state_gradients", "errors", "solved")  # outputs of the scans that gradients reads


WIDEST_SPLIT = 160  # channels of a state that leave a thread enough registers to split operands: above, scans spill
SMALLEST = Config(16, 16, 2, 1, 16, 1, 16, 1, 1, 1)  # the config with the least shared memory


def refusal(problem: Problem, arch: Arch) -> str | None:
    if problem.operands == "fp32" and problem.key_dim > WIDEST_SPLIT:
        return f"key_dim {problem.key_dim} and operands split for fp32 do not fit the registers: use naive, or tf32"
    needed = int(scan_smem_bytes(problem, image_of(problem).reverse, SMALLEST))
    if not arch.fits_smem(needed):
        return (
            f"two chunks of key_dim {problem.key_dim} in {problem.operands} are {needed} bytes of shared memory, and a "
            f"block on {arch.name} has {arch.smem_per_block}: use naive"
        )
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V, image = problem.key_dim, problem.value_dim, image_of(problem)
    return Space(
        Config,
        choices={
            "BV": (16, 32, 48, 64, 96, 128),
            "rows": (16, 32),
            "stages": (2, 3, 4),
            "span": (1, 2, 4, 8),
            "channels": (16, 32, 64),
            "slab_warps": (1, 2, 3, 4, 6, 8),
            "values": (16, 32, 64),
            "prepare_warps": (1, 2, 4, 8),
            "prepare_ctas": (1, 2, 4),
            "gradient_ctas": (1, 2, 3, 4),
        },
        constraints=(
            Constraint("blocks share the columns of the state evenly", lambda c: V % c.BV == 0),
            Constraint("warps share the columns of a block evenly", lambda c: c.BV % c.rows == 0),
            Constraint("warps share the channels of a chunk evenly", lambda c: K % c.channels == 0),
            *limits(arch, *_blocks(problem)),
            Constraint("each warp of a chunk has channels", lambda c: c.slab_warps * c.channels <= K),
            Constraint("states are computed for equal parts of the values", lambda c: V % c.values == 0),
            Constraint("a block of gradients has at most 512 threads", lambda c: gradient_threads(c) <= 512),
            Constraint(
                "the chunks of prepare fit the registers",
                lambda c: prepare_registers(image) <= arch.registers_for(WARP * c.prepare_warps * c.prepare_ctas),
            ),
            Constraint(
                "the sums of gradients fit the registers",
                lambda c: gradient_registers(image, c) <= arch.registers_for(gradient_threads(c) * c.gradient_ctas),
            ),
        ),
    )


def _blocks(problem: Problem) -> tuple[Block, ...]:
    image, normalized = image_of(problem), problem.use_qk_l2norm_in_kernel
    return (
        Block(
            "kda_backward_prepare",
            lambda c: WARP * c.prepare_warps,
            lambda c: prepare_smem_bytes(image, c),
            name="a block of prepare",
        ),
        Block(
            "kda_backward_reverse",
            scan_threads,
            lambda c: scan_smem_bytes(problem, image.reverse, c),
            lambda c: scan_registers(image, c),
            name="a block of reverse",
        ),
        Block(
            "kda_backward_gradients",
            gradient_threads,
            lambda c: gradient_smem_bytes(image, c, normalized=normalized),
            name="a block of gradients",
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    K, V, B, HV, NT = problem.key_dim, problem.value_dim, problem.batch, problem.value_heads, chunks(problem)
    image = image_of(problem)
    sizes = {
        "image_bytes": image.total,
        "prepare_smem_bytes": int(prepare_smem_bytes(image, config)),
        "gradient_smem_bytes": int(gradient_smem_bytes(image, config, normalized=problem.use_qk_l2norm_in_kernel)),
        "forward_smem_bytes": int(scan_smem_bytes(problem, image.forward, config)),
        "reverse_smem_bytes": int(scan_smem_bytes(problem, image.reverse, config)),
    }
    element = DType.FP32 if image.twice else DType.BF16
    spaces = (
        Workspace("images", DType.INT32, (B, HV, NT, image.total // 4)),
        *(Workspace(name, element, (B, HV, problem.pieces(CHUNK * config.span), K, V)) for name in _SCANNED[:2]),
        *(Workspace(name, element, (B, HV, NT, CHUNK, V)) for name in _SCANNED[2:]),
        *gate_sums(problem, NT),
    )
    constants = {**sizes, **gate_constants(problem), "operands": image.operands.cuda}
    return Plan(_launches(problem, config, sizes), constants, spaces)


def _launches(problem: Problem, config: Config, smem: dict[str, int]) -> tuple[Launch, ...]:
    B, HV, NT = problem.batch, problem.value_heads, chunks(problem)
    heads = ("seq_len", "heads", "value_heads", "boundaries")
    keys = ("q", "k", "g", "beta", "A_log", "dt_bias", "scale", "lower_bound", "cu_seqlens")
    columns = (problem.value_dim // config.BV, HV, problem.sequences)
    return (
        Launch(
            "kda_backward_prepare",
            (-(-NT // config.prepare_warps), HV, B),
            WARP * config.prepare_warps,
            smem["prepare_smem_bytes"],
            (*keys, *heads, "images"),
        ),
        Launch(
            "kda_backward_forward",
            columns,
            int(scan_threads(config)),
            smem["forward_smem_bytes"],
            ("v", "cu_seqlens", "initial_state", "seq_len", "value_heads", "images", "states", "errors"),
        ),
        Launch(
            "kda_backward_reverse",
            columns,
            int(scan_threads(config)),
            smem["reverse_smem_bytes"],
            (
                "d_o",
                "cu_seqlens",
                "dht",
                "dv",
                "dh0",
                "seq_len",
                "value_heads",
                "images",
                "state_gradients",
                "solved",
            ),
        ),
        Launch(
            "kda_backward_gradients",
            (problem.pieces(CHUNK * config.span), problem.heads, B),
            int(gradient_threads(config)),
            smem["gradient_smem_bytes"],
            (
                *keys,
                "d_o",
                "dq",
                "dk",
                "dg",
                "dbeta",
                *heads,
                "images",
                *_SCANNED,
                *("gate_sums",) * problem.use_gate_in_kernel,
            ),
        ),
        *gate_launch(problem),
    )


# span, channels, slab_warps and values of gradients, the best first.
_GRADIENTS = (
    (8, 64, 1, 16),
    (8, 32, 1, 16),
    (4, 32, 2, 16),
    (4, 32, 1, 16),
    (8, 16, 1, 16),
    (4, 16, 1, 16),
    (2, 16, 1, 16),
    (1, 16, 1, 16),
)


def default(problem: Problem, arch: Arch) -> Config:
    """Narrow blocks of the scans, few states, and wide slabs, which fit every arch and do not spill."""
    allowed, K = space(problem, arch), problem.key_dim
    widest = {"bf16": 32 if _wide_slabs_spill(problem, arch) else 64, "tf32": 32, "fp32": 16}[problem.operands]
    longest = 2 if problem.operands == "fp32" and K <= 32 else 8  # for longer spans, ptxas spills an address
    # A state of 208 or more channels leaves few registers: with more warps, each copies less of a stage.
    for BV in (*((128, 96) if K > 192 else ()), 64, 48, 32, 16):
        for stages in (4, 3, 2):
            for span, channels, slab_warps, values in _GRADIENTS:
                config = Config(BV, 16, stages, span, channels, slab_warps, values, 4, 2, 1)
                if channels <= widest and span <= longest and allowed.refusal(config) is None:
                    return config
    raise TemplateError(f"{arch.name} has no room for the smallest chunk of key_dim {K}")


def _wide_slabs_spill(problem: Problem, arch: Arch) -> bool:
    """Whether ptxas spills a loop counter with slabs of 64 channels."""
    packed = problem.use_cu_seqlens and problem.key_dim > 128
    return arch.has_tcgen05 and problem.key_dim >= 128 and (problem.use_qk_l2norm_in_kernel or packed)


IMPLEMENTATION = Implementation(
    name="chunked",
    summary="chunks on tensor cores: prepared in parallel, scanned forward and in reverse, differentiated in parallel",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
)
