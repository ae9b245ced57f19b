"""What flash-linear-attention imports can be imported."""

from importlib.util import find_spec

if find_spec("torch"):
    from tests.torch import unfit_torchvision  # noqa: F401
