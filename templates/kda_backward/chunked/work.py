"""The work of chunked on a problem, counted from its loops; exact counts equal the emulator's counters."""

from tuner.arch import GPU
from tuner.spec import Work

from ..gate_gradients import gate_sums_bytes, gate_work
from ..problem import Problem
from .config import CHUNK, FP32, WARP, Config, image_of, scan_threads

_BETAS = 6 * 4 * WARP  # bytes of beta that a warp of gradients reads
_LENGTHS = 4 * 4 * WARP  # bytes of inverse norms that a warp of gradients reads
_RATE = 4 * WARP  # bytes of A_log
_BIAS = 8 * WARP  # bytes of dt_bias: a lane has two channels


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact if exponents are small; other instructions are the minimum that the algorithm
    requires. With packed sequences, counts are upper bounds."""
    image = image_of(problem)
    return (
        _prepare(problem, config),
        _scan(problem, config, image.forward, products=4, states=problem.initial_states),
        _scan(
            problem,
            config,
            image.reverse,
            products=6,
            states=problem.initial_states + problem.final_states,
        ),
        _gradients(problem, config),
        *gate_work(problem, chunks(problem)),
    )


def chunks(problem: Problem) -> int:
    """NT: chunks per batch entry and head."""
    return problem.pieces(CHUNK)


def _all_chunks(problem: Problem) -> int:
    return problem.batch * problem.value_heads * chunks(problem)


def _tokens(problem: Problem, heads: int) -> int:
    return problem.batch * problem.seq_len * heads


def _prepare(problem: Problem, config: Config) -> Work:
    K, count, steps, image = problem.key_dim, _all_chunks(problem), problem.key_dim // 16, image_of(problem)
    elements = CHUNK * K / WARP  # elements per lane
    keys = 2 * problem.dtype.itemsize * K
    gates = problem.gate_dtype.itemsize * K + problem.beta_dtype.itemsize
    norms = problem.use_qk_l2norm_in_kernel
    written = count * (image.total - 2 * FP32 * CHUNK * (not norms))
    read = _tokens(problem, problem.value_heads) * (keys * (1 + norms) + gates)
    read += count * (_bias_bytes(problem) + _RATE * problem.use_gate_in_kernel)
    mma = image.operands.products * count * (6 * steps + 2)
    once = _tokens(problem, problem.heads) * keys + _tokens(problem, problem.value_heads) * gates
    return Work(
        ctas=problem.batch * problem.value_heads * -(-chunks(problem) // config.prepare_warps),
        warps=config.prepare_warps,
        mma=mma,
        tf32=image.operands.tf32(mma),
        fma=count * (12 * elements + CHUNK * CHUNK / 2),
        mufu=count * ((3 + 2 * problem.use_gate_in_kernel) * elements + K / 8),
        alu=count * 8 * elements,
        smem_wavefronts=count * (8 * steps + 100),
        l2_bytes=read + written,
        dram_bytes=once + written,
        chain=1,
    )


def _bias_bytes(problem: Problem) -> int:
    """Bytes of dt_bias that all lanes read for a chunk: two channels per lane and tile."""
    return 8 * WARP * (problem.key_dim // 8) * problem.use_dt_bias


def _scan(problem: Problem, config: Config, part: int, products: int, states: int) -> Work:
    """One of the scans: it copies `part` bytes of an image, and computes `products` products of 16 × 16 channels and
    values, and one with a block of tokens; `states` states in fp32 are read or written. The dependent mma of one chunk
    are the product with P T in reverse, those of all channels with the state, and one of the update."""
    K, V, count, element = problem.key_dim, problem.value_dim, _all_chunks(problem), problem.dtype.itemsize
    columns, steps, warps = V // config.BV, K // 16, V // config.rows
    reverse = products == 6
    rows = _tokens(problem, problem.value_heads) * V * element * (1 + reverse)  # v, or do and dv
    stored_states = problem.batch * problem.value_heads * problem.pieces(CHUNK * config.span)
    operands = image_of(problem).operands
    stored_bytes = operands.nbytes * V * (stored_states * K + count * CHUNK)
    ends = 4 * states * problem.value_heads * K * V
    tiles = steps * V // 16
    wavefronts = warps * operands.nbytes // 2 * (4 * steps * (products // 2) + 3 * steps + 8)
    mma = operands.products * count * (products * tiles + 2 * V // 16)
    return Work(
        ctas=columns * problem.value_heads * problem.sequences,
        warps=int(scan_threads(config)) // WARP,
        mma=mma,
        tf32=operands.tf32(mma),
        fma=count * (8 * tiles + V / 2),
        alu=count * (8 * tiles + V),
        smem_wavefronts=count * (wavefronts + (columns * part + 2 * CHUNK * V) / 128),
        l2_bytes=float(count * columns * part + rows + stored_bytes + ends),
        dram_bytes=float(count * part + rows + stored_bytes + ends),
        barriers=count * columns,
        chain=-(-problem.mean_len // CHUNK),
        stages=config.stages,
        step_mma=operands.products * (K + CHUNK + CHUNK * reverse) / operands.step,
        step_other=4,  # the barrier; keys are loaded; the state is packed; the recalled values are scaled and packed
    )


def _gradients(problem: Problem, config: Config) -> Work:
    K, V, count, element = problem.key_dim, problem.value_dim, _all_chunks(problem), problem.dtype.itemsize
    slabs, pairs, steps = K // config.channels, config.channels // 16, V // 16
    tokens = _tokens(problem, problem.value_heads)
    elements = CHUNK * K / WARP
    image = image_of(problem)
    operands, nbytes = image.operands, image.operands.nbytes
    spans = problem.batch * problem.value_heads * problem.pieces(CHUNK * config.span)
    states = spans * 2 * nbytes * K * V
    values = count * 2 * nbytes * CHUNK * V + tokens * element * V  # errors and solved, and do
    keys = K * (2 * element + 2 * problem.gate_dtype.itemsize)
    outputs = _tokens(problem, problem.heads) * 2 * K * element + tokens * problem.beta_dtype.itemsize
    norms, gated = problem.use_qk_l2norm_in_kernel, problem.use_gate_in_kernel
    small = count * slabs * (_BETAS + _LENGTHS * norms + _RATE * gated + 2 * _BIAS * problem.use_dt_bias)
    gate_bytes, remade_bytes = gate_sums_bytes(problem, chunks(problem)), _recomputed_bytes(problem, config)
    ends = count // problem.group * config.slab_warps  # warps that compute gradients of rows before their normalization
    reread_bytes = (_tokens(problem, problem.heads) * 2 * K * element + ends * _LENGTHS) * norms
    reread_bytes += tokens * problem.beta_dtype.itemsize * problem.use_beta_sigmoid_in_kernel
    reread_bytes += tokens * K * problem.gate_dtype.itemsize * gated
    a_pair = 6 if image.twice else 8  # the sums of S ⊙ dS use bf16 products, and additions in 32 bits
    levels = 4 if operands.products > 1 else 1  # levels of pairs of tokens, for an exact dg
    made_mma = spans * (config.span - 1) * 6 * (K // 16) * steps
    mma = operands.products * (count * slabs * (steps * (4 + a_pair * pairs) + 8 * levels * pairs) + made_mma)
    shares = spans * (config.span > 1)  # blocks whose warps wait for each other
    # In 16 × 16 elements: states and gradients in both orientations; their operands are stored once, and loaded for
    # each.
    made_blocks = (6 * K // 16 * steps + 3 * (slabs * steps + K // 16)) * (config.span > 1)
    summed = 4 * elements * (problem.group > 1 or norms)  # dq and dk
    summed += (4 + 2 * (config.span > 1)) * elements  # columns of exponents and of dg
    shared = count * (2 * nbytes * (4 * K // 16 * steps + made_blocks) + summed)
    return Work(
        ctas=problem.batch * problem.heads * problem.pieces(CHUNK * config.span),
        warps=config.span * config.slab_warps,
        mma=mma,
        tf32=operands.tf32(mma),
        fma=count * (24 * elements + image.twice * K * V / WARP + 4 * K * V / WARP),
        mufu=count * (10 + 9 * gated) * elements,
        alu=count * (24 * elements + slabs * 8 * steps),
        smem_wavefronts=shared,
        l2_bytes=states + slabs * values + tokens * keys + outputs + small + reread_bytes + gate_bytes + remade_bytes,
        dram_bytes=states + values + tokens * keys + outputs + count * 4 * CHUNK + gate_bytes,
        barriers=problem.batch * problem.heads * chunks(problem) * norms + shares * slabs * 2 * V // config.values,
        chain=problem.group * V // config.values * -(-slabs // config.slab_warps),
        stages=2,
        around=count * slabs,
    )


def _recomputed_bytes(problem: Problem, config: Config) -> int:
    """Bytes that the chunks of a span read again to compute each other's states: keys, queries and gates."""
    if config.span == 1:
        return 0
    heads, slabs = problem.batch * problem.value_heads, problem.key_dim // config.channels
    gated, norms = problem.use_gate_in_kernel, problem.use_qk_l2norm_in_kernel
    keys = problem.key_dim * (2 * problem.dtype.itemsize + problem.gate_dtype.itemsize)
    small = chunks(problem) * slabs * (_BETAS + _LENGTHS * norms)
    padded_chunks = problem.pieces(CHUNK * config.span) * config.span  # chunks, including empty ones
    return _tokens(problem, problem.value_heads) * keys + heads * (
        small + padded_chunks * slabs * (_RATE * gated + _BIAS * problem.use_dt_bias)
    )
