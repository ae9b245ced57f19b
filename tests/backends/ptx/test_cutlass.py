"""Tests of the PTX interpreter on CuTe's kernels: instructions and layouts as CuTe describes them.

The programs in tests/cutlass are ours, on CuTe's layouts and atoms; they need nvcc.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.backends.ptx.test_wgmma_descriptors import KEYS, fields, told
from tuner.backends import ptx
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor

LIBRARY, NVCC = find_spec("cutlass_library"), shutil.which("nvcc")
FOLDER = Path(__file__).parent / "cutlass"
PRODUCTS, TENSOR_PRODUCTS = (
    re.findall(r"^PRODUCT\((.*)\)$", (FOLDER / f"{name}.cu").read_text(), re.MULTILINE)
    for name in ("products", "tensor_products")
)
BF16 = ml_dtypes.bfloat16
DTYPES = {"bf16": BF16, "fp16": np.float16, "tf32": np.float32, "fp32": np.float32}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # nvcc takes minutes
    pytest.mark.skipif(LIBRARY is None or NVCC is None, reason="needs nvcc, and pip install 'kerntune[cutlass]'"),
]


def compiled(name: str, folder: Path, arch: str = "sm_90a") -> Mapping[str, ptx.Entry]:
    """The kernels of a program, as nvcc's PTX."""
    assert LIBRARY is not None
    assert LIBRARY.origin is not None
    target, headers = folder / f"{name}.ptx", Path(LIBRARY.origin).parent / "source" / "include"
    options = ["-ptx", f"-arch={arch}", "-std=c++17", "--expt-relaxed-constexpr", f"-I{headers}"]
    shapes = "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"  # N that is no power of two
    subprocess.run([str(NVCC), *options, shapes, FOLDER / f"{name}.cu", "-o", target], check=True)
    return ptx.parse(target.read_text())


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ptx.Entry]:
    return compiled("products", tmp_path_factory.mktemp("cutlass"))


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ptx.Entry]:
    return compiled("boxes", tmp_path_factory.mktemp("cutlass"))


@pytest.fixture(scope="module")
def tensor_products(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ptx.Entry]:
    return compiled("tensor_products", tmp_path_factory.mktemp("cutlass"), "sm_100a")


def integers(seed: int, *shape: int) -> np.ndarray:
    """Small ones: exact in every type, and so are their products' sums."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def memory_of(written: str, **arrays: np.ndarray) -> ptx.Global:
    memory = ptx.Global({name: array.nbytes for name, array in arrays.items()}, frozenset(written.split()))
    for name, array in arrays.items():
        memory.view(name, array.dtype, array.shape)[...] = array
    return memory


def run_product(entries: Mapping[str, ptx.Entry], case: str) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """(what the interpreter computes, what is right, the descriptors of B for each 16 of K)."""
    words = case.split(", ")
    kind, columns, depth = words[1:4]
    n, k, dtype = int(columns), int(depth), BF16 if kind == "bf16" else np.float16
    a, b = integers(0, 64, k), integers(1, n, k)
    empty = {"d": np.zeros((64, n), np.float32), "w": np.zeros((k // 16, 2), np.uint64)}
    memory = memory_of("d w", a=a.astype(dtype), b=b.astype(dtype), **empty)
    addresses = [memory.address(name) for name in "abdw"]
    ptx.launch(entries["_".join(words)], ptx.Shape((1, 1, 1), 128, 48 << 10), memory, addresses)
    return memory.view("d", np.float32, (64, n)), a @ b.T, memory.view("w", np.uint64, (k // 16, 2))[:, 1].tolist()


@pytest.mark.parametrize("case", PRODUCTS)
def test_wgmma_multiplies_what_cute_wrote_and_describes(products: Mapping[str, ptx.Entry], case: str) -> None:
    result, exact, _ = run_product(products, case)
    np.testing.assert_array_equal(result, exact)


@pytest.mark.parametrize("order", ptx.ORDERS)
@pytest.mark.parametrize("case", TENSOR_PRODUCTS)
def test_tcgen05_multiplies_what_cute_wrote_and_describes(
    tensor_products: Mapping[str, ptx.Entry], case: str, order: ptx.Order
) -> None:
    words = case.split(", ")
    m, n, k = map(int, words[3:6])
    a, b, d = integers(0, m, k), integers(1, n, k), np.zeros((m, n), DTYPES[words[2]])
    memory = memory_of("d", a=a.astype(DTYPES[words[1]]), b=b.astype(DTYPES[words[1]]), d=d)
    addresses = [memory.address(name) for name in "abd"]
    ptx.launch(tensor_products["_".join(words)], ptx.Shape((1, 1, 1), 128, 64 << 10), memory, addresses, order=order)
    np.testing.assert_array_equal(memory.view("d", d.dtype, d.shape), (a @ b.T).astype(d.dtype))


@pytest.mark.parametrize("case", [case for case in PRODUCTS if re.search(r"(K|MN), SW\d+$", case)])
def test_cute_describes_panels_as_the_kernels_of_attention_do(products: Mapping[str, ptx.Entry], case: str) -> None:
    _, _, descriptors = run_product(products, case)
    *_, n, depth, _, _, major, atom = case.split(", ")
    width = int(atom.removeprefix("SW")) // 2
    names = KEYS if major == "K" else [f"values<{n}, {depth}, {width}>"]
    ours = {fields(descriptor)[1:] for name in names for descriptor in told()[name].descriptors}
    assert {fields(descriptor)[1:] for descriptor in descriptors} <= ours


def mapped(memory: ptx.Global, name: str, array: np.ndarray, box: tuple[int, int]) -> MappedTensor:
    """Swizzled over the box's width, where that is more than a chunk of 16 bytes."""
    dtype, span = DType.of(array.dtype), box[1] * array.itemsize
    assert dtype is not None
    return MappedTensor(name, memory.address(name), dtype, array.shape, array.strides, box, span if span > 16 else 0)


@pytest.mark.parametrize("order", ptx.ORDERS)
@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_a_box_lies_where_cutes_layout_says(
    boxes: Mapping[str, ptx.Entry], major: str, width: int, order: ptx.Order
) -> None:
    x, exact = integers(0, 100, 136).astype(BF16), np.zeros((64, 64), BF16)
    exact[:30, :40] = x[70:, 96:]
    memory = memory_of("out", x=x, out=exact)
    arguments = [mapped(memory, "x", x, (64, width)), memory.address("out"), np.int32(70), np.int32(96)]
    memory.view("out", np.uint8, (exact.nbytes,))[...] = 0xFF
    ptx.launch(boxes[f"load_{major}_{width}"], ptx.Shape((1, 1, 1), 128, 48 << 10), memory, arguments, order=order)
    np.testing.assert_array_equal(memory.view("out", BF16, (64, 64)), exact)


@pytest.mark.parametrize("order", ptx.ORDERS)
def test_boxes_reach_both_blocks_of_a_cluster_and_products_return(
    boxes: Mapping[str, ptx.Entry], order: ptx.Order
) -> None:
    a, b = integers(0, 128, 64).astype(BF16), integers(1, 64, 128).astype(BF16)
    c, d = np.zeros((128, 64), BF16), np.zeros((128, 128), np.float32)
    memory = memory_of("c d", a=a, b=b, c=c, d=d)
    maps = [mapped(memory, name, x, (64, 64)) for name, x in (("a", a), ("b", b), ("c", c))]
    shape = ptx.Shape((2, 1, 1), 128, 48 << 10, cluster=2)
    ptx.launch(boxes["multicast"], shape, memory, [*maps, memory.address("d")], order=order)
    exact = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(memory.view("d", np.float32, d.shape), exact)
    np.testing.assert_array_equal(memory.view("c", BF16, c.shape), exact[:, :64].astype(BF16))


def test_a_box_is_added_to_what_a_tensor_holds(boxes: Mapping[str, ptx.Entry]) -> None:
    x, sums = integers(0, 64, 32), integers(1, 50, 32)
    memory = memory_of("sums", x=x, sums=sums)
    arguments = [mapped(memory, "sums", sums, (64, 32)), memory.address("x")]
    ptx.launch(boxes["added"], ptx.Shape((1, 1, 1), 128, 48 << 10), memory, arguments)
    np.testing.assert_array_equal(memory.view("sums", np.float32, sums.shape), sums + x[:50])
