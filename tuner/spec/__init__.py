"""The API for an operator's folder: problem, arguments, space, plan. Operator authors import everything from here."""

from tuner.base.fields import Fields, Scalar
from tuner.spec.argument import Argument, Role, within
from tuner.spec.block import Block, Quantity, limits
from tuner.spec.constraint import Constraint
from tuner.spec.draw import normal, random_tensor
from tuner.spec.dtype import DType, Precision
from tuner.spec.operator import Cost, Gradient, Implementation, Operator, Request, Updated, Work
from tuner.spec.plan import Launch, Plan, Workspace
from tuner.spec.problem import Array, Arrays, common_fields, extent, static
from tuner.spec.space import Space, Value, first_fit
from tuner.spec.tensor_map import TensorMap
from tuner.spec.tolerance import Reduction, Tolerance, tolerance_of

__all__ = [
    "Argument",
    "Array",
    "Arrays",
    "Block",
    "Constraint",
    "Cost",
    "DType",
    "Fields",
    "Gradient",
    "Implementation",
    "Launch",
    "Operator",
    "Plan",
    "Precision",
    "Quantity",
    "Reduction",
    "Request",
    "Role",
    "Scalar",
    "Space",
    "TensorMap",
    "Tolerance",
    "Updated",
    "Value",
    "Work",
    "Workspace",
    "common_fields",
    "extent",
    "first_fit",
    "limits",
    "normal",
    "random_tensor",
    "static",
    "tolerance_of",
    "within",
]
