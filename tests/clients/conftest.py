"""Programs that other people wrote, run on these kernels. `make test-clients` installs them, beside the rest."""

import pytest

torch = pytest.importorskip("torch")


_LIBRARIES = []  # what is declared stays while it is held


def _declare_torchvisions_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)


try:
    import torchvision  # noqa: F401
except (
    RuntimeError
):  # its wheel is of another build of torch than the one here; timm imports it, and calls none of these
    _declare_torchvisions_operators()
except ImportError:
    pass
