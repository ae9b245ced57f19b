"""Element types and precisions, with one name for Python, the command line, SQL and reports."""

from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


class DType(Enum):
    """An element type; the value is its name in files and commands.

    A row holds everything the program knows about a type. The range, and whether it is a floating-point type, come from
    NumPy or from ml_dtypes, which has the types that NumPy lacks. torch and JAX use the NumPy name.
    """

    #      value   NumPy and torch  bytes  CUDA       PTX   XLA_FFI_DataType  CUtensorMapDataType
    FP16 = "fp16", "float16", 2, "fp16", "f16", 10, "FLOAT16"
    BF16 = "bf16", "bfloat16", 2, "bf16", "bf16", 16, "BFLOAT16"
    FP32 = "fp32", "float32", 4, "float", "f32", 11, "FLOAT32"
    FP8_E4M3 = "fp8_e4m3", "float8_e4m3fn", 1, "fp8_e4m3", "e4m3", 20, "UINT8"  # OCP: no infinity, NaN beyond ±448
    INT32 = "int32", "int32", 4, "int", "s32", 4, "INT32"
    INT64 = "int64", "int64", 8, "long long", "s64", 5, "INT64"
    INT8 = "int8", "int8", 1, "signed char", "s8", 2, "UINT8"
    UINT8 = "uint8", "uint8", 1, "unsigned char", "u8", 6, "UINT8"
    UINT32 = "uint32", "uint32", 4, "unsigned int", "u32", 8, "UINT32"
    FP64 = "fp64", "float64", 8, "double", "f64", 12, "FLOAT64"

    _value_: str
    framework_name: str  # name in NumPy or ml_dtypes, torch and JAX
    itemsize: int  # bytes per element
    cuda: str  # name in the templates: a built-in type, or a struct of `primitives/types.cuh` or `fp8.cuh`
    ptx: str  # suffix of PTX instructions
    xla: int  # XLA_FFI_DataType
    tensor_map: str  # suffix of CU_TENSOR_MAP_DATA_TYPE_…; a map copies 8-bit types as bytes

    __hash__ = object.__hash__  # faster than Enum's, which is written in Python; every call hashes a few of these

    def __new__(cls, value: str, name: str, size: int, cuda: str, ptx: str, xla: int, tensor_map: str) -> "DType":
        member = object.__new__(cls)
        member._value_, member.framework_name, member.itemsize = value, name, size
        member.cuda, member.ptx, member.xla, member.tensor_map = cuda, ptx, xla, tensor_map
        return member

    @cached_property
    def in_numpy(self) -> bool:
        """Whether NumPy itself has the type; torch exchanges only such types with NumPy."""
        return hasattr(np, self.framework_name)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; ml_dtypes registers those that NumPy lacks."""
        if self.in_numpy:
            return np.dtype(self.framework_name)
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.framework_name))  # type: ignore[no-any-return]  # no static types

    @cached_property
    def is_float(self) -> bool:
        return not self.in_numpy or self.numpy.kind == "f"

    @cached_property
    def largest(self) -> float | int:
        """The largest finite number of the type."""
        if not self.is_float:
            return int(np.iinfo(self.numpy).max)
        if self.in_numpy:
            return float(np.finfo(self.numpy).max)
        import ml_dtypes

        return float(ml_dtypes.finfo(self.numpy).max)  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, dtype: DTypeLike) -> "DType | None":
        """Return the element type for a NumPy dtype or its name; None if it is not listed here."""
        return _BY_NAME.get(np.dtype(dtype).name)


_BY_NAME = {dtype.framework_name: dtype for dtype in DType}


class Precision(Enum):
    """Precision of the operands of matrix products, which accumulate in fp32."""

    DTYPE = "dtype"  # the dtype of the tensors, or what the operator documents instead
    TF32 = "tf32"
    FP32 = "fp32"
