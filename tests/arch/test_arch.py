"""Tests of GPU names, and of identifying a GPU by what its driver reports."""

import numpy as np
import pytest

from tuner import arch
from tuner.arch import ARCHES, Arch, models
from tuner.arch.naming import DriverInfo, identify
from tuner.backends import gpu
from tuner.errors import MachineError, UsageError


@pytest.mark.parametrize("name", ["sm_90a", "sm90a", "SM_90A"])
def test_an_arch_is_found_by_its_name(name: str) -> None:
    result = arch.gpu(name)
    assert (result.name, result.arch.name, result.device.name) == ("sm_90a", "sm_90a", "H100")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("H200", "H200"),
        ("rtx 5090", "RTX 5090"),
        ("rtx4090", "RTX 4090"),
        ("h100-pcie", "H100 PCIe"),
        ("A800", "A100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 5070 Ti", "RTX 5070 Ti"),
        ("GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H800 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("Orin", "AGX Orin"),
    ],
)
def test_a_model_is_found_by_its_name_or_by_what_the_driver_reports(name: str, device: str) -> None:
    result = arch.gpu(name)
    assert result.name == result.device.name == device


@pytest.mark.parametrize(
    "name", ["NVIDIA H20-3e", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H2000"]
)
def test_a_model_is_not_taken_for_another_whose_name_it_contains(name: str) -> None:
    with pytest.raises(UsageError, match="unknown GPU"):
        arch.gpu(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sm90", r"unknown GPU 'sm90': did you mean sm_90a\? `tuner gpus` lists all$"),
        (
            "RTX 4050",
            r"unknown GPU 'RTX 4050': did you mean RTX 40\d0 or .*, or describe it as 'RTX 4050 \(sm_89, N SMs\)'\? `",
        ),
        ("Card (sm_89, 0 SMs)", "unknown GPU"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "did you mean RTX 4090, or describe it as"),
        ("sm_80,sm_90a", "unknown GPU 'sm_80,sm_90a': give one"),
        ("V100", r"^V100 is too old: sm_80 is the first supported architecture; `tuner gpus` lists all$"),
        ("Tesla T4", "^Tesla T4 is too old"),
        ("RTX 2080 Ti", "too old"),
        ("RTX 2000 Ada", "^unknown GPU"),
        ("MI300X", r"^MI300X is not an NVIDIA GPU, and no others are supported; `tuner gpus` lists all$"),
        ("", r"unknown GPU '': `tuner gpus` lists all$"),
        ("X (sm_89, 0 SMs)", r"describe one as 'RTX 4050 \(sm_89, 20 SMs\)', of sm_80, .*sm_121a$"),
        ("X (sm_99, 20 SMs)", "describe one as"),
        ("\udcff (sm_89, 20 SMs)", "describe one as"),
        (f"X (sm_89, 1{'0' * 400} SMs)", "describe one as"),
    ],
)
def test_an_unknown_gpu_is_refused_with_what_may_be_meant(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        arch.gpu(name)


def test_every_device_has_an_arch_that_is_listed_and_every_name_is_one_devices() -> None:
    assert {device.arch.name for device in arch.DEVICES.values()} == set(arch.ARCHES)
    for device in arch.DEVICES.values():
        assert {arch.gpu(name).name for name in (device.name, *device.aliases)} == {device.name}


def test_an_arch_has_the_sms_of_the_model_that_is_meant() -> None:
    assert all(arch.gpu(name).device.sm_count == of.sm_count for name, of in arch.ARCHES.items())
    assert [arch.gpu(name).arch.sm_count for name in ("H100", "H20", "Card (sm_90a, 60 SMs)")] == [132, 78, 60]


@pytest.mark.parametrize("name", arch.ARCHES)
def test_products_have_a_rate_wherever_there_are_instructions_for_them(name: str) -> None:
    of = arch.ARCHES[name]
    models = [device for device in arch.DEVICES.values() if device.arch is of]
    assert {bool(device.wgmma_flops) for device in models} == {of.has_wgmma}
    assert {bool(device.tcgen05_flops) for device in models} == {of.has_tcgen05}


PUBLISHED = {  # TFLOP/s of dense 16-bit products that sum in fp32, by data sheets
    "A100": 312, "A30": 165, "A10": 125, "A10G": 70, "A40": 149.7, "A2": 18, "RTX A6000": 154.8, "RTX 3090": 71,
    "RTX 3080": 59.5, "L4": 121, "L40": 181, "L40S": 362, "L20": 119.5, "RTX 6000 Ada": 364, "RTX 4090": 165.2,
    "RTX 4080": 97.5, "RTX 4070": 58.3, "B200": 2250, "RTX 5090": 209.5, "RTX 5080": 112.6, "RTX PRO 6000": 503.8,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_rates_clocks_and_sms_make_the_published_products(name: str) -> None:
    device = arch.DEVICES[name]
    flops = device.sm_count * device.clock_mhz * 1e6 * (device.tcgen05_flops or device.mma_flops)
    assert flops == pytest.approx(1e12 * PUBLISHED[name], rel=0.02)


def test_arches_of_one_family_have_the_same_limits() -> None:
    families: dict[int, set[object]] = {}
    for of in arch.ARCHES.values():
        limits = of.smem_per_block, of.threads_per_sm, of.ctas_per_sm, of.has_tcgen05, of.has_wgmma
        families.setdefault(of.family, set()).add(limits)
    assert all(len(limits) == 1 for limits in families.values())
    assert len(families) == len(arch.ARCHES) - 2  # sm_103a is of sm_100a's, sm_121a of sm_120a's


def told(name: str, capability: int, sm_count: int, **facts: float) -> DriverInfo:
    return DriverInfo(name, capability, sm_count, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "capability", "sm_count", "expected"),
    [
        ("NVIDIA H200", 90, 132, "H200"),
        ("NVIDIA GeForce RTX 4090", 89, 128, "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 89, 76, "RTX 4090 Laptop GPU (sm_89, 76 SMs)"),
        ("NVIDIA H200 MIG 1g.18gb", 90, 16, "H200 MIG 1g.18gb (sm_90a, 16 SMs)"),  # a slice is not the whole
        ("NVIDIA GeForce RTX 3080", 86, 70, "RTX 3080 (sm_86, 70 SMs)"),  # two models of one name
        ("NVIDIA GeForce RTX 5090", 90, 170, "RTX 5090 (sm_90a, 170 SMs)"),  # the device knows better than its name
        ("NVIDIA", 121, 40, "GPU (sm_121a, 40 SMs)"),
        ("Graphics A/B", 89, 40, "Graphics A B (sm_89, 40 SMs)"),  # names become files
    ],
)
def test_a_gpu_is_a_listed_model_or_one_of_its_own(name: str, capability: int, sm_count: int, expected: str) -> None:
    result = identify(told(name, capability, sm_count))
    assert result.name == result.device.name == expected
    assert (result.arch.compute_capability, result.device.sm_count) == (capability, sm_count)


def test_a_gpu_of_its_own_has_the_rates_that_its_driver_tells() -> None:
    facts = {"clock_mhz": 1410, "memory_mhz": 1593, "bus_bits": 640, "l2_bytes": 5 << 20}
    device = identify(told("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 80, 14, **facts)).device
    whole = arch.DEVICES["A100"]
    assert (device.clock_mhz, device.dram_gb_s, device.l2_bytes) == (1410, 255, 5 << 20)
    assert device.l2_bytes_per_clock == round(whole.l2_bytes_per_clock / 8)
    assert device.mma_flops == whole.mma_flops


def test_what_a_driver_does_not_tell_is_as_on_the_nearest_model() -> None:
    device = identify(told("NVIDIA GeForce RTX 4090 Laptop GPU", 89, 64)).device
    whole = arch.DEVICES["RTX 4090"]
    assert device.clock_mhz == whole.clock_mhz
    assert device.dram_gb_s == whole.dram_gb_s / 2 and device.l2_bytes == whole.l2_bytes // 2


def test_the_bus_of_faster_memory_makes_no_faster_l2() -> None:
    device = identify(told("NVIDIA H20-3e", 90, 78, memory_mhz=3201, bus_bits=6144)).device
    assert (device.dram_gb_s, device.l2_bytes_per_clock) == (4917, arch.DEVICES["H20"].l2_bytes_per_clock)
    assert device.wgmma_flops == arch.DEVICES["H20"].wgmma_flops


def test_any_machine_knows_the_arch_of_a_gpu_by_its_own_name() -> None:
    name = identify(told("NVIDIA GeForce RTX 4090 Laptop GPU", 89, 76)).name
    result = arch.gpu(name)
    assert (result.name, result.arch.name) == (name, "sm_89")
    assert result.device.name == "RTX 4090 with 76 SMs"  # predictions say whose rates they assume
    assert result.device.dram_gb_s == round(76 / 128 * arch.DEVICES["RTX 4090"].dram_gb_s)
    assert arch.gpu("Card (sm_90a, 132 SMs)").device is arch.DEVICES["H100"]
    assert arch.is_listed(arch.gpu("H200")) and not arch.is_listed(result)


def test_a_described_gpu_has_the_name_that_its_machine_gives_it() -> None:
    assert arch.gpu("NVIDIA  Card/2 (sm_89, 20 SMs)").name == "Card 2 (sm_89, 20 SMs)"
    assert arch.gpu("H100 (sm_90a, 132 SMs)") == arch.gpu("H100")
    assert arch.gpu("H100 (sm_90a, 66 SMs)").name == "H100 (sm_90a, 66 SMs)"


def test_a_gpu_of_its_own_is_called_by_its_model() -> None:
    result = identify(told("NVIDIA GeForce RTX 4090 Laptop GPU", 89, 76))
    assert all(arch.has_model_name(result, n) for n in ("rtx 4090 laptop gpu", "NVIDIA GeForce RTX 4090 Laptop GPU"))
    assert not any(arch.has_model_name(result, name) for name in ("RTX 4090", "NVIDIA", ""))
    assert not arch.has_model_name(arch.gpu("H200"), "")


@pytest.mark.parametrize(
    ("capability", "said"),
    [
        (75, r"has compute capability 75, which is not one of sm_80, .*sm_121a, and sm_80 is the oldest$"),
        (130, "sm_121a$"),
    ],
)
def test_a_gpu_of_no_known_arch_is_an_error_that_lists_the_known_ones(capability: int, said: str) -> None:
    with pytest.raises(MachineError, match=said):
        identify(told("NVIDIA thing", capability, 40))


def test_a_gpu_that_is_not_listed_is_named_only_where_it_is() -> None:
    if gpu.available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="unknown GPU 'RTX 4090 Laptop GPU': did you mean RTX 4090"):
        gpu.named("RTX 4090 Laptop GPU")
    assert gpu.named("RTX 4090 Laptop GPU (sm_89, 76 SMs)").device.name == "RTX 4090 with 76 SMs"


def test_a_model_is_one_row_of_its_architecture() -> None:
    (device,) = models._models("sm_89", 512, (("RTX 4099", 10, 2000, 300, 8, 96),))
    assert (device.arch, device.sm_count, device.l2_bytes) == (ARCHES["sm_89"], 10, 8 << 20)
    assert device.l2_bytes_per_clock == round(ARCHES["sm_89"].l2_rate * 96) and device.aliases == ()
    assert {device.arch.name for device in models.DEVICES.values()} == ARCHES.keys()


@pytest.mark.parametrize("arch", ARCHES.values(), ids=ARCHES.keys())
def test_what_fits_an_sm_follows_from_its_limits(arch: Arch) -> None:
    assert arch.fits_smem(arch.smem_per_block) and not arch.fits_smem(arch.smem_per_block + 1)
    assert not arch.fits_smem(arch.smem_per_block, 2) and arch.ctas_by_smem(arch.smem_per_block) == 1
    assert arch.fits_threads(1024) and not arch.fits_threads(1025) and not arch.fits_threads(1024, 3)
    assert [arch.registers_for(threads) for threads in (128, 384, 512, 1024)] == [255, 168, 128, 64]
    assert np.array_equal(arch.fits_smem(np.array([0, 1 << 30])), [True, False])
