"""Element types and precisions: one name in Python, on the command line, in SQL and in the reports."""

from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


class DType(Enum):
    """An element type; the value is the name that people read and write.

    Each row is all that the program knows of a type. Its range and whether it is a number with a fraction follow from
    NumPy's, or from that of ml_dtypes, which has the types that NumPy lacks. torch and JAX use the NumPy name.
    """

    #      value   NumPy and torch  bytes  CUDA       PTX   XLA_FFI_DataType  CUtensorMapDataType
    FP16 = "fp16", "float16", 2, "fp16", "f16", 10, "FLOAT16"
    BF16 = "bf16", "bfloat16", 2, "bf16", "bf16", 16, "BFLOAT16"
    FP32 = "fp32", "float32", 4, "float", "f32", 11, "FLOAT32"
    FP8_E4M3 = "fp8_e4m3", "float8_e4m3fn", 1, "fp8_e4m3", "e4m3", 20, "UINT8"  # of OCP: no infinity, NaN beyond ±448
    INT32 = "int32", "int32", 4, "int", "s32", 4, "INT32"
    INT64 = "int64", "int64", 8, "long long", "s64", 5, "INT64"
    INT8 = "int8", "int8", 1, "signed char", "s8", 2, "UINT8"
    UINT8 = "uint8", "uint8", 1, "unsigned char", "u8", 6, "UINT8"
    UINT32 = "uint32", "uint32", 4, "unsigned int", "u32", 8, "UINT32"
    FP64 = "fp64", "float64", 8, "double", "f64", 12, "FLOAT64"

    _value_: str
    framework_name: str  # in NumPy or ml_dtypes, torch and JAX
    itemsize: int  # bytes an element
    cuda: str  # in the templates: a built-in type, or a struct of `primitives/types.cuh` or `fp8.cuh`
    ptx: str  # the suffix of PTX instructions
    xla: int  # XLA_FFI_DataType
    tensor_map: str  # of CU_TENSOR_MAP_DATA_TYPE_…; a map copies types of 8 bits as bytes

    __hash__ = object.__hash__  # Enum's is written in Python, and each call asks for some

    def __new__(cls, value: str, name: str, size: int, cuda: str, ptx: str, xla: int, tensor_map: str) -> "DType":
        member = object.__new__(cls)
        member._value_, member.framework_name, member.itemsize = value, name, size
        member.cuda, member.ptx, member.xla, member.tensor_map = cuda, ptx, xla, tensor_map
        return member

    @cached_property
    def in_numpy(self) -> bool:
        """Whether NumPy itself has the type; torch exchanges only those with NumPy."""
        return hasattr(np, self.framework_name)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype, which ml_dtypes registers for the types that NumPy lacks."""
        if self.in_numpy:
            return np.dtype(self.framework_name)
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.framework_name))  # type: ignore[no-any-return]  # it has no static types

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
        """The element type of a NumPy dtype (or anything that names one); None if there is none here."""
        return _BY_NAME.get(np.dtype(dtype).name)


_BY_NAME = {dtype.framework_name: dtype for dtype in DType}


class Precision(Enum):
    """Of the operands of matrix products, which are summed in fp32."""

    DTYPE = "dtype"  # that of the tensors, or what the operator documents in its place
    TF32 = "tf32"
    FP32 = "fp32"
