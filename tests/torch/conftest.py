"""Makes the modules that flash-linear-attention imports importable."""

from importlib.util import find_spec

if find_spec("torch"):
    from tests.torch import unfit_torchvision  # noqa: F401
