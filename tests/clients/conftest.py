"""Third-party programs on these kernels. `make test-clients` installs them."""

import os
from importlib.util import find_spec

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")  # for tests of sharded arrays

if find_spec("torch"):
    from tests.torch import unfit_torchvision  # noqa: F401
