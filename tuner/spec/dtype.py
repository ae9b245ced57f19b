"""Element types and precisions: one name in Python, on the command line, in SQL and in the reports."""

from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


class DType(Enum):
    """An element type; the value is the name that people read and write."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP8_E4M3 = "fp8_e4m3"  # as OCP and CUDA have it: no infinity, NaN beyond ±448
    INT32 = "int32"
    INT64 = "int64"
    INT8 = "int8"
    UINT8 = "uint8"
    UINT32 = "uint32"
    FP64 = "fp64"

    __hash__ = object.__hash__  # Enum's is written in Python, and each call asks for some

    @property
    def cuda(self) -> str:
        """The type's name in the templates (structs of `primitives/types.cuh`, and of 8 bits of `fp8.cuh`)."""
        return _CUDA.get(self, self.value)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return _ITEMSIZES[self]

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; what NumPy does not have comes from ml_dtypes."""
        if self in _FOREIGN:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, _NUMPY_NAMES[self]))  # type: ignore[no-any-return]  # it has no static types
        return np.dtype(_NUMPY_NAMES[self])

    @classmethod
    def of(cls, dtype: DTypeLike) -> "DType | None":
        """The element type of a NumPy dtype (or anything that names one); None when it is not ours."""
        return _BY_NUMPY_NAME.get(np.dtype(dtype).name)


class Precision(Enum):
    """Of the operands of matrix products, whose sums are fp32."""

    DTYPE = "dtype"  # as the tensors have it, or what the operator says stands for it
    TF32 = "tf32"
    FP32 = "fp32"


_NUMPY_NAMES = {
    DType.FP16: "float16",
    DType.BF16: "bfloat16",
    DType.FP32: "float32",
    DType.FP8_E4M3: "float8_e4m3fn",
    DType.INT32: "int32",
    DType.INT64: "int64",
    DType.INT8: "int8",
    DType.UINT8: "uint8",
    DType.UINT32: "uint32",
    DType.FP64: "float64",
}
_CUDA = {
    DType.FP32: "float",
    DType.FP64: "double",
    DType.INT8: "signed char",
    DType.UINT8: "unsigned char",
    DType.INT32: "int",
    DType.UINT32: "unsigned int",
    DType.INT64: "long long",
}
_WIDE, _NARROW = (DType.INT64, DType.FP64), (DType.FP8_E4M3, DType.INT8, DType.UINT8)
_ITEMSIZES = {each: 8 if each in _WIDE else 1 if each in _NARROW else 4 for each in DType}
_ITEMSIZES |= {DType.FP16: 2, DType.BF16: 2}
_BY_NUMPY_NAME = {name: dtype for dtype, name in _NUMPY_NAMES.items()}
_FOREIGN = (DType.BF16, DType.FP8_E4M3)  # to NumPy
