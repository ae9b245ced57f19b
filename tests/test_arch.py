"""Naming a GPU."""

import pytest

from tuner import arch
from tuner.errors import UsageError


@pytest.mark.parametrize("name", ["sm_90a", "sm90a", "SM_90A"])
def test_an_arch_is_found_by_its_name(name: str) -> None:
    found = arch.gpu(name)
    assert (found.name, found.arch.name, found.device.name) == ("sm_90a", "sm_90a", "H100")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("H200", "H200"),
        ("rtx 5090", "RTX 5090"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 5070 Ti", "RTX 5070 Ti"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_a_model_is_found_by_its_name_or_by_what_the_driver_reports(name: str, device: str) -> None:
    found = arch.gpu(name)
    assert found.name == found.device.name == device


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA L40", "NVIDIA GeForce RTX 3090 Ti", "H2000"])
def test_a_model_is_not_taken_for_another_whose_name_it_contains(name: str) -> None:
    with pytest.raises(UsageError, match="unknown GPU"):
        arch.gpu(name)


def test_an_unknown_gpu_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown GPU 'sm90': try sm_90a \(known: sm_80, .*RTX 5090"):
        arch.gpu("sm90")


def test_a_gpu_that_is_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(UsageError, match="unknown GPU 'sm_80,sm_90a': give one"):
        arch.gpu("sm_80,sm_90a")
    with pytest.raises(UsageError, match=r"unknown GPU 'V100' \(known: sm_80"):
        arch.gpu("V100")


def test_every_device_has_an_arch_that_is_listed() -> None:
    assert {device.arch.name for device in arch.DEVICES.values()} == set(arch.ARCHES)
