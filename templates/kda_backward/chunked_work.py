"""What chunked does for a problem, counted from its loops: the emulator's counters agree with the exact ones."""

from tuner.arch import GPU
from tuner.operator import Work

from .chunked_config import CHUNK, FP32, WARP, Config, image_of, scan_threads, slab_warps
from .optional import gate_sums_bytes, gate_work
from .problem import Problem

_BETAS = 6 * 4 * WARP  # bytes of beta that a warp of gradients reads
_LENGTHS = 4 * 4 * WARP  # the same of inverse lengths
_RATE = 4 * WARP  # of A_log


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact where exponents are small; other instructions are those that the mathematics
    needs. With packed sequences, counts are bounds from above."""
    image = image_of(problem)
    return (
        _prepare(problem, config),
        _scan(problem, config, image.forward, products=4, blocks=0, states=problem.initial_states),
        _scan(
            problem,
            config,
            image.reverse,
            products=6,
            blocks=2,
            states=problem.initial_states + problem.final_states,
        ),
        _gradients(problem, config),
        *gate_work(problem, chunks(problem)),
    )


def chunks(problem: Problem) -> int:
    """NT: chunks of a batch's head."""
    return problem.pieces(CHUNK)


def _all_chunks(problem: Problem) -> int:
    return problem.batch * problem.value_heads * chunks(problem)


def _tokens(problem: Problem, heads: int) -> int:
    return problem.batch * problem.seq_len * heads


def _prepare(problem: Problem, config: Config) -> Work:
    K, count, steps, image = problem.key_dim, _all_chunks(problem), problem.key_dim // 16, image_of(problem)
    elements = CHUNK * K / WARP  # a lane
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
        barriers=0,
        longest_cta=1,
        chain=1,
    )


def _bias_bytes(problem: Problem) -> int:
    """That all lanes read of dt_bias for a chunk: two channels a lane and tile."""
    return 8 * WARP * (problem.key_dim // 8) * problem.use_dt_bias


def _scan(problem: Problem, config: Config, part: int, products: int, blocks: int, states: int) -> Work:
    """One of the scans: it copies `part` bytes of an image, has so many `products` of 16 × 16 channels and values, and
    `blocks` mma more; `states` of fp32 are read or written. In a row of one chunk: the product with P T, those of all
    channels with the state, and one of the update."""
    K, V, count, element = problem.key_dim, problem.value_dim, _all_chunks(problem), problem.dtype.itemsize
    columns, steps, warps = V // config.BV, K // 16, V // config.rows
    rows = _tokens(problem, problem.value_heads) * V * element * (2 if blocks else 1)  # v, or do and dv
    kept = problem.batch * problem.value_heads * problem.pieces(CHUNK * config.span)
    operands = image_of(problem).operands
    left = operands.nbytes * V * (kept * K + count * CHUNK)
    ends = 4 * states * problem.value_heads * K * V
    tiles = steps * V // 16
    wavefronts = warps * operands.nbytes // 2 * (4 * steps * (products // 2) + 3 * steps + 8)
    mma = operands.products * count * (products * tiles + blocks * V // 16)
    return Work(
        ctas=columns * problem.value_heads * problem.sequences,
        warps=int(scan_threads(config)) // WARP,
        mma=mma,
        tf32=operands.tf32(mma),
        fma=count * (8 * tiles + V / 2),
        mufu=0,
        alu=count * (8 * tiles + V),
        smem_wavefronts=count * (wavefronts + (columns * part + 2 * CHUNK * V) / 128),
        l2_bytes=float(count * columns * part + rows + left + ends),
        dram_bytes=float(count * part + rows + left + ends),
        barriers=count * columns,
        longest_cta=1,
        chain=-(-problem.mean_len // CHUNK),
        stages=config.stages,
        step_mma=operands.products * (K + CHUNK + (CHUNK if blocks else 0)) / operands.step,
        step_other=4,  # the barrier, keys are loaded, the state is packed, what it recalls is scaled and packed
    )


def _gradients(problem: Problem, config: Config) -> Work:
    K, V, count, element = problem.key_dim, problem.value_dim, _all_chunks(problem), problem.dtype.itemsize
    slabs, pairs, steps = K // config.channels, config.channels // 16, V // 16
    tokens = _tokens(problem, problem.value_heads)
    elements = CHUNK * K / WARP
    image = image_of(problem)
    operands, nbytes = image.operands, image.operands.nbytes
    states = count * 2 * nbytes * K * V  # each once a chunk: what two chunks share comes from DRAM once
    kept = problem.batch * problem.value_heads * problem.pieces(CHUNK * config.span) * 2 * nbytes * K * V
    values = count * 2 * nbytes * CHUNK * V + tokens * element * V  # errors and solved, and do: once a warp
    keys = K * (2 * element + 2 * problem.gate_dtype.itemsize)
    outputs = _tokens(problem, problem.heads) * 2 * K * element + tokens * problem.beta_dtype.itemsize
    norms, gated = problem.use_qk_l2norm_in_kernel, problem.use_gate_in_kernel
    small = count * (slabs * (image.block + _BETAS + _LENGTHS * norms + _RATE * gated) + 2 * _bias_bytes(problem))
    left, made = gate_sums_bytes(problem, chunks(problem)), _made_bytes(problem, config)
    again = _tokens(problem, problem.heads) * 2 * K * element * norms
    again += tokens * problem.beta_dtype.itemsize * problem.use_beta_sigmoid_in_kernel
    again += tokens * K * problem.gate_dtype.itemsize * gated
    a_pair = 6 if image.twice else 8  # the sums of S ⊙ dS take products of bf16, and additions in 32 bits
    levels = 4 if operands.products > 1 else 1  # of pairs of tokens, for an exact dg
    mma = count * slabs * (steps * (6 + a_pair * pairs) + 8 * levels * pairs) + _made_mma(problem, config)
    mma *= operands.products
    return Work(
        ctas=problem.batch * problem.heads * -(-chunks(problem) // config.gradient_chunks),
        warps=config.gradient_chunks * int(slab_warps(image, config)),
        mma=mma,
        tf32=operands.tf32(mma),
        fma=count * (24 * elements + image.twice * K * V / WARP),
        mufu=count * (6 + 6 * gated) * elements,
        alu=count * (24 * elements + slabs * 8 * steps),
        smem_wavefronts=count * 4 * elements if problem.group > 1 or norms else 0,
        l2_bytes=states + slabs * values + tokens * keys + outputs + small + again + left + made,
        dram_bytes=kept + values + tokens * keys + outputs + count * (image.block + 4 * CHUNK) + left,
        barriers=problem.batch * problem.heads * chunks(problem) * norms,
        longest_cta=1,
        chain=problem.group * steps,
        stages=config.gradient_steps + config.values_ahead,
    )


def _pairs(problem: Problem, config: Config) -> int:
    """Pairs of chunks, of which one makes the state and the other the gradient that are not stored."""
    return problem.batch * problem.value_heads * (chunks(problem) // 2) * (config.span - 1)


def _made_mma(problem: Problem, config: Config) -> int:
    return 6 * _pairs(problem, config) * (problem.key_dim // 16) * (problem.value_dim // 16)


def _made_bytes(problem: Problem, config: Config) -> int:
    """Of the other chunk: a tile of keys and its values, for a gradient two of both; decay and beta, by lanes."""
    K, V, slabs, pairs = problem.key_dim, problem.value_dim, problem.key_dim // config.channels, _pairs(problem, config)
    image = image_of(problem)
    lanes = 2 * 2 * FP32 * WARP * (slabs * (1 + image.twice) + K // 16)
    odd = problem.seq_len // 2 if problem.use_cu_seqlens else _odd_tokens(problem.seq_len)
    rows = problem.batch * problem.value_heads * odd * (config.span - 1) * V * problem.dtype.itemsize
    return pairs * (3 * image.matrix + slabs * 2 * image.operands.nbytes * CHUNK * V + lanes) + slabs * rows


def _odd_tokens(seq_len: int) -> int:
    """Tokens of the second chunks of pairs."""
    return seq_len // (2 * CHUNK) * CHUNK + max(seq_len % (2 * CHUNK) - CHUNK, 0)
