"""Tests of CuPy's own classes on another library's memory, which need no GPU."""

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")

from tuner.backends import gpu  # noqa: E402
from tuner.backends.gpu import foreign_memory  # noqa: E402
from tuner.spec.dtype import DType  # noqa: E402


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.FP32, DType.INT32])
def test_an_array_lies_where_its_owner_has_it(monkeypatch: pytest.MonkeyPatch, dtype: DType) -> None:
    monkeypatch.setattr(gpu, "opened", lambda: cupy)  # with or without a device
    memory = np.zeros(64, np.uint8)
    address = memory.__array_interface__["data"][0]
    result = foreign_memory.array(address, (2, 3), dtype.numpy, device=0)
    assert (result.data.ptr, result.data.device_id) == (address, 0)
    assert (result.shape, result.dtype, result.nbytes) == ((2, 3), dtype.numpy, 6 * dtype.numpy.itemsize)
    assert result.flags.c_contiguous
