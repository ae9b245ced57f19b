"""Tests of the table of element types: each row is consistent, and a new type is one more row."""

from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from tuner.backends.gpu import tensor_map
from tuner.spec import dtype as table
from tuner.spec.dtype import DType

E4M3 = '    FP8_E4M3 = "fp8_e4m3", "float8_e4m3fn", 1, "fp8_e4m3", "e4m3", 20, "UINT8"'
E5M2 = '    FP8_E5M2 = "fp8_e5m2", "float8_e5m2", 1, "fp8_e5m2", "e5m2", 19, "UINT8"'


@pytest.mark.parametrize("dtype", DType)
def test_a_row_agrees_with_the_array_type_of_that_name(dtype: DType) -> None:
    assert dtype.numpy.itemsize == dtype.itemsize
    assert DType.of(dtype.numpy) is dtype and DType(dtype.value) is dtype
    assert np.array([dtype.largest]).astype(dtype.numpy).tolist() == [dtype.largest]


@pytest.mark.parametrize("dtype", DType)
def test_a_tensor_map_has_a_type_of_the_same_width(dtype: DType) -> None:
    assert dtype.tensor_map in tensor_map._DTYPES
    assert int(dtype.tensor_map.lstrip("BFLOATUIN")) == 8 * dtype.itemsize


def test_names_that_tell_types_apart_are_distinct() -> None:
    for names in zip(*((row.value, row.framework_name, row.cuda, row.ptx, row.xla) for row in DType), strict=True):
        assert len(set(names)) == len(DType)


def test_types_that_numpy_lacks_come_from_ml_dtypes() -> None:
    assert [dtype for dtype in DType if not dtype.in_numpy] == [DType.BF16, DType.FP8_E4M3]
    assert DType.FP8_E4M3.largest == 448 and DType.BF16.is_float and not DType.UINT8.is_float


def test_another_type_is_another_row() -> None:
    source = Path(table.__file__).read_text()
    extended = ModuleType("extended")
    exec(compile(source.replace(E4M3, f"{E5M2}\n{E4M3}"), "extended", "exec"), extended.__dict__)
    dtype = extended.DType("fp8_e5m2")
    assert dtype.numpy == ml_dtypes.float8_e5m2 and extended.DType.of(ml_dtypes.float8_e5m2) is dtype
    assert (dtype.itemsize, dtype.largest, dtype.is_float, dtype.in_numpy) == (1, 57344, True, False)
    assert (dtype.cuda, dtype.ptx, dtype.xla) == ("fp8_e5m2", "e5m2", 19)
