"""Element types and precisions: one name in Python, on the command line, in SQL and in the reports."""

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


class DType(Enum):
    """An element type; the value is the name that people read and write."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def cuda(self) -> str:
        """The type's name in the templates (`fp16` and `bf16` are structs of `primitives/types.cuh`)."""
        return {"fp32": "float", "int32": "int", "int64": "long long"}.get(self.value, self.value)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return {"fp16": 2, "bf16": 2, "fp32": 4, "int32": 4, "int64": 8}[self.value]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 comes from ml_dtypes."""
        if self is DType.BF16:
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return]  # ml_dtypes has no static types
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
    DType.INT32: "int32",
    DType.INT64: "int64",
}
_BY_NUMPY_NAME = {name: dtype for dtype, name in _NUMPY_NAMES.items()}
