"""Imported for what it does: torchvision can be imported then, where its wheel is of another build of torch than is
here. Packages import it that call none of its operators, so it is enough to declare these."""

import torch

_LIBRARIES = []  # what is declared stays while it is held


def _declare() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)


try:
    import torchvision  # noqa: F401
except RuntimeError:
    _declare()
except ImportError:
    pass
