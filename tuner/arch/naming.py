"""Parsing of GPU names: an architecture, a listed model, a custom name, or the name that a driver reports."""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import log

from tuner.arch.limits import ARCHES, Arch
from tuner.arch.models import DEVICES, Device, l2_rate, scaled
from tuner.errors import MachineError, UsageError

_MAKERS = {"nvidia", "geforce"}  # words that a driver puts before the model name
# Suffixes that denote a different model. MIG denotes a slice of a GPU.
_OTHER_MODELS = {"ti", "super", "d", "v2", "3e", "laptop", "max", "q", "mig"}
_CUSTOM = re.compile(r"(.+) \((sm_\w+), ([1-9][0-9]{0,3}) SMs\)")
_OLDER = re.compile(r"(nvidia|tesla|geforce|quadro)*(v100|p100|p40|t4|gtx|titan|rtx20[678]0|sm[5-7]\d)")
_FOREIGN = re.compile(r"(amd|instinct)*mi\d{3}|gfx\d|radeon|(intel)?(arc[ab]?\d|gaudi)")


@dataclass(frozen=True, slots=True)
class GPU:
    """The target of a search: an architecture, and the model that predictions assume.

    `name` is the model's name if one was given and the arch's name otherwise. Records of `sm_90a` and of `H200` are
    separate.
    """

    name: str
    arch: Arch
    device: Device


def gpu(name: str) -> GPU:
    """Return the GPU for an arch (`sm_90a`), a model (`H200`, `"RTX 5090"`, or a driver's string) or a custom name.

    For a custom name, predictions assume the closest listed model with the given number of SMs. Raises UsageError,
    which lists the accepted names, for anything else.
    """
    wanted = _plain(name)
    for arch in ARCHES.values():
        if wanted == _plain(arch.name):
            return GPU(arch.name, arch, _representative(arch))
    for device in DEVICES.values():
        if wanted in map(_plain, _names(device)):
            return model(device)
    if device_found := _reported(name):
        return model(device_found)
    if name.isprintable() and (match := _CUSTOM.fullmatch(name)) and (served := ARCHES.get(match[2])):
        return _described(match[1], served, int(match[3]))
    raise UsageError(_unknown(name, wanted))


def _described(reported: str, arch: Arch, sm_count: int) -> GPU:
    """Return the GPU for the parts of a custom name, or the listed model that matches them exactly."""
    near = closest_model(reported, arch, sm_count)
    if near.sm_count == sm_count and _plain(reported) in map(_plain, _names(near)):
        return model(near)
    return GPU(custom_name(reported, arch, sm_count), replace(arch, sm_count=sm_count), scaled(near, sm_count))


def model(device: Device) -> GPU:
    """Return the GPU for a listed model, with the model's number of SMs."""
    return GPU(device.name, replace(device.arch, sm_count=device.sm_count), device)


def custom_name(reported: str, arch: Arch, sm_count: int) -> str:
    """Build the name of a GPU whose model is not listed: the driver's name, the arch and the number of SMs.

    A MIG slice, or a model with fewer SMs than the listed model of that name, also gets a custom name.
    """
    words = [word for word in reported.replace("/", " ").split() if word.lower() not in _MAKERS]
    return f"{' '.join(words) or 'GPU'} ({arch.name}, {sm_count} SMs)"


def is_listed(device: GPU) -> bool:
    """Return whether the GPU is an architecture or a listed model."""
    return device.name in ARCHES or device.name in DEVICES


def has_model_name(device: GPU, name: str) -> bool:
    """Return whether `name` is the model in a GPU's custom name, with or without the manufacturer."""
    model = device.name.rpartition(" (")[0]
    return bool(model) and _plain(model) == _plain(" ".join(w for w in name.split() if w.lower() not in _MAKERS))


def closest_model(reported: str, arch: Arch, sm_count: int) -> Device:
    """Return the listed model of the arch that is closest by name, or else by number of SMs."""
    models = [device for device in DEVICES.values() if device.arch is arch]
    words = _words(reported)
    named = [(len(name), device) for device in models for name in _names(device) if _words(name) <= words]
    if named:
        return max(named, key=lambda item: item[0])[1]
    return min(models, key=lambda device: abs(log(device.sm_count / sm_count)))


def _representative(arch: Arch) -> Device:
    return next(device for device in DEVICES.values() if device.arch is arch)


def _reported(reported: str) -> Device | None:
    """Return the model named in a driver's string, such as `NVIDIA GeForce RTX 5090`; the longest match wins."""
    words = _words(reported)
    if not words & _MAKERS:
        return None
    named = {name: device for device in DEVICES.values() for name in _names(device)}
    inside = [name for name in named if _words(name) <= words and not (words - _words(name)) & _OTHER_MODELS]
    return named[max(inside, key=len)] if inside else None


def _names(device: Device) -> tuple[str, ...]:
    return (device.name, *device.aliases)


def _words(name: str) -> set[str]:
    return set(name.lower().replace("-", " ").split())


def _unknown(name: str, wanted: str) -> str:
    listing = "`tuner gpus` lists all"
    if name.endswith(" SMs)"):
        return f"unknown GPU {name!r}: describe one as 'RTX 4050 (sm_89, 20 SMs)', of {', '.join(ARCHES)}"
    if "," in name:
        return f"unknown GPU {name!r}: give one; {listing}"
    if _OLDER.match(wanted):
        return f"{name} is too old: {next(iter(ARCHES))} is the first supported architecture; {listing}"
    if _FOREIGN.match(wanted):
        return f"{name} is not an NVIDIA GPU, and no others are supported; {listing}"
    near = _near(wanted)
    hint = f": did you mean {' or '.join(near)}" if near else ""
    if models := [candidate for candidate in near if candidate in DEVICES]:
        hint += f", or describe it as '{name} ({DEVICES[models[0]].arch.name}, N SMs)'"
    return f"unknown GPU {name!r}{hint}{'?' if near else ':'} {listing}"


def _near(wanted: str) -> list[str]:
    """Return names with the same beginning, or else those closest in spelling."""
    by_plain_name = {_plain(name): name for name in (*ARCHES, *DEVICES)}
    model = wanted.removeprefix("nvidia").removeprefix("geforce")
    alike = [plain for plain in by_plain_name if model and (plain.startswith(model) or model.startswith(plain))]
    return [by_plain_name[plain] for plain in alike[:3] or get_close_matches(model, by_plain_name, 3, 0.6)]


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """GPU properties that the driver reports; 0 if it does not report them."""

    name: str
    compute_capability: int  # e.g. 90
    sm_count: int
    clock_mhz: float = 0
    memory_mhz: float = 0
    bus_bits: int = 0
    l2_bytes: int = 0


def identify(info: DriverInfo) -> GPU:
    """Return the listed model with that number of SMs, or else a custom GPU with the rates that the driver reports.

    Raises MachineError if the arch is not supported.
    """
    try:
        device = gpu(info.name)
        if (device.arch.compute_capability, device.device.sm_count) == (info.compute_capability, info.sm_count):
            return device
    except UsageError:
        pass
    arch = _arch(info)
    name = custom_name(info.name, arch, info.sm_count)
    return model(_custom(name, info, closest_model(info.name, arch, info.sm_count)))


def _arch(info: DriverInfo) -> Arch:
    for arch in ARCHES.values():
        if arch.compute_capability == info.compute_capability:
            return arch
    oldest = next(iter(ARCHES.values()))
    old = f", and {oldest.name} is the oldest" if info.compute_capability < oldest.compute_capability else ""
    raise MachineError(
        f"{info.name} has compute capability {info.compute_capability}, which is not one of {', '.join(ARCHES)}{old}"
    )


def _custom(name: str, info: DriverInfo, near: Device) -> Device:
    """Build a custom model. Rates that the driver does not report come from the closest model. DRAM transfers twice per
    clock.
    """
    memory, alike = 2 * info.memory_mhz * info.bus_bits / 8 / 1000, scaled(near, info.sm_count)
    return replace(
        alike,
        name=name,
        clock_mhz=round(info.clock_mhz) or alike.clock_mhz,
        dram_gb_s=round(memory) or alike.dram_gb_s,
        l2_bytes=info.l2_bytes or alike.l2_bytes,
        l2_bytes_per_clock=l2_rate(near, info.bus_bits) or alike.l2_bytes_per_clock,
    )
