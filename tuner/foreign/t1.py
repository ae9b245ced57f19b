"""Import of a T1 file, in which the auto-tuning community describes a kernel and its space.

`search.replay.t1` reads only the space.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.foreign.call import Call, of_keywords
from tuner.search.replay.expression import evaluate
from tuner.search.replay.files import parse
from tuner.search.replay.t1 import read
from tuner.spec.space import Space

_DTYPES: Mapping[str, Any] = {
    "float": np.float32,
    "float32": np.float32,
    "double": np.float64,
    "float64": np.float64,
    "half": np.float16,
    "int": np.int32,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "int8": np.int8,
    "uint32": np.uint32,
}
_LISTED = re.compile(r"\b(?:max|min)\(\s*(\w+)\s*\)")  # over a parameter's values


def called(path: Path) -> Call:
    """Return the call that a T1 file describes. Raises UsageError if it describes none."""
    document, space = parse(path), read(path)
    try:
        kernel = document["KernelSpecification"]
        options = _keywords(document, kernel, space)
        file = _file(path, str(kernel["KernelFile"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: {type(error).__name__} {error} in its KernelSpecification") from error
    call = of_keywords({**options, "kernel_source": file.name}, file.parent, path.name)
    return _with_defaults(call, document)


def _keywords(document: Mapping[str, Any], kernel: Mapping[str, Any], space: Space[Any]) -> dict[str, Any]:
    arguments = kernel.get("Arguments") or ()
    if not arguments:
        raise UsageError(f"{kernel['KernelName']}: the T1 file lists no Arguments, so there is nothing to call it with")
    sizes = [int(size) for size in kernel["ProblemSize"]]
    values = {argument["Name"]: _value(argument, sizes, space) for argument in arguments}
    constant = {argument["Name"] for argument in arguments if argument.get("MemType") == "Constant"}
    axes = {f"grid_div_{axis}": kernel.get(f"GridDiv{axis.upper()}") for axis in "xyz"}
    local = kernel.get("LocalSize") or {}
    names = [str(local.get(axis, "")) for axis in "XYZ"]
    return {
        "kernel_name": kernel["KernelName"],
        "problem_size": sizes,
        "arguments": list(values.values()),  # includes constants, which are parameters and symbols
        "cmem_args": {name: value for name, value in values.items() if name in constant},
        "tune_params": space.choices,
        "restrictions": [condition["Expression"] for condition in document["ConfigurationSpace"].get("Conditions", ())],
        "block_size_names": [
            name if name in space.choices else f"block_size_{axis}" for name, axis in zip(names, "xyz", strict=True)
        ],
        "compiler_options": kernel.get("CompilerOptions"),
        "smem_args": {"size": kernel.get("SharedMemory") or 0},
        "lang": kernel.get("Language", "CUDA"),
        **{name: value for name, value in axes.items() if value},
    }


def _value(argument: Mapping[str, Any], sizes: list[int], space: Space[Any]) -> Any:
    if argument["Type"] not in _DTYPES:
        raise UsageError(f"argument {argument['Name']} has the type {argument['Type']!r} (known: {', '.join(_DTYPES)})")
    dtype, fill = _DTYPES[argument["Type"]], argument.get("FillValue", 0)
    if argument["MemoryType"] == "Scalar":
        return dtype(fill)
    count = _count(str(argument["Size"]), sizes, space)
    if argument.get("FillType") == "Random":
        return np.random.default_rng(sum(map(ord, argument["Name"]))).standard_normal(count).astype(dtype)
    return np.full(count, fill, dtype)


def _count(text: str, sizes: list[int], space: Space[Any]) -> int:
    """Evaluate a count such as `ProblemSize[0] * max(filter_width)`."""
    for i, size in enumerate(sizes):
        text = text.replace(f"ProblemSize[{i}]", str(size))
    text = _LISTED.sub(lambda match: str(_extreme(match, space)), text)
    return int(evaluate(text, lambda word: space.choices[word][0]))


def _extreme(match: re.Match[str], space: Space[Any]) -> Any:
    values = space.choices[match[1]]
    return max(values) if match[0].startswith("max") else min(values)


def _file(path: Path, named: str) -> Path:
    for candidate in (path.parent / named, path.parent.parent / named):
        if candidate.is_file():
            return candidate
    raise UsageError(f"{path} names the kernel file {named}, which is not beside it")


def _with_defaults(call: Call, document: Mapping[str, Any]) -> Call:
    usual = {}
    for parameter in document["ConfigurationSpace"]["TuningParameters"]:
        value = parameter.get("Default")
        value = value[0] if isinstance(value, list) and value else value
        if value in call.choices[parameter["Name"]]:
            usual[parameter["Name"]] = value
    return replace(call, usual={**call.usual, **usual})
