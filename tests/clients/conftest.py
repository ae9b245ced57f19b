"""Programs that other people wrote, run on these kernels. `make test-clients` installs them, beside the rest."""

from importlib.util import find_spec

if find_spec("torch"):
    from tests.torch import unfit_torchvision  # noqa: F401
