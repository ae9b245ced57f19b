"""The launch that sums the gradients of the gate's parameters, and the bytes of states."""

from tuner.spec import DType, Launch, Scalar, Work, Workspace

from .problem import Problem

GATE_THREADS = 512  # threads of the summing launch: each has at most one element of a row of 2 K sums


def state_bytes(problem: Problem) -> int:
    """Bytes of initial_state, dh0 and dht together."""
    states = 2 * problem.initial_states + problem.final_states
    return 4 * states * problem.value_heads * problem.key_dim * problem.value_dim


def gate_launch(problem: Problem) -> tuple[Launch, ...]:
    """Sums the contributions of tokens to the gradients of A_log and dt_bias; none if the kernel computes no gate."""
    names = ("cu_seqlens", "dA_log", "ddt_bias", "batch", "seq_len", "boundaries", "gate_sums")
    launch = Launch("kda_backward_gate", (problem.value_heads, 1, 1), GATE_THREADS, 4 * GATE_THREADS, names)
    return (launch,) * problem.use_gate_in_kernel


def gate_constants(problem: Problem) -> dict[str, Scalar]:
    return {
        "gate_threads": GATE_THREADS,
        "gate_sums_argument": "gate_sums" if problem.use_gate_in_kernel else "nullptr",
    }


def gate_sums(problem: Problem, rows: int) -> tuple[Workspace, ...]:
    """`rows` rows per batch entry and head, one for every token or chunk."""
    shape = (problem.value_heads, problem.batch, rows, 2, problem.key_dim)
    return (Workspace("gate_sums", DType.FP32, shape),) * problem.use_gate_in_kernel


def gate_sums_bytes(problem: Problem, rows: int) -> int:
    """Bytes, written once and read once."""
    return sum(workspace.nbytes for workspace in gate_sums(problem, rows))


def gate_work(problem: Problem, rows: int) -> tuple[Work, ...]:
    """Work of `gate_launch`; chain: the sums that each thread adds."""
    elements = gate_sums_bytes(problem, rows) / 4
    groups = GATE_THREADS // (2 * problem.key_dim)
    written = 4 * (problem.gate_heads + problem.bias_heads * problem.key_dim)
    work = Work(
        ctas=problem.value_heads,
        warps=GATE_THREADS // 32,
        fma=elements / 32,
        alu=2 * elements / 32,
        smem_wavefronts=problem.value_heads * GATE_THREADS / 16,
        l2_bytes=4 * elements + written,
        dram_bytes=4 * elements + written,
        barriers=2 * problem.value_heads,
        chain=-(-problem.batch * rows // groups),
    )
    return (work,) * problem.use_gate_in_kernel
