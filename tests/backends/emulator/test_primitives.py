"""Tests that the device and host versions of the primitives have equal names, so that one source compiles for both."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tuner.backends.emulator.build import NATIVE
from tuner.base.assets import PRIMITIVES

CODE = (".cu", ".cuh", ".jinja", ".py")
FUNCTION = re.compile(
    r"^(?:template <>\n)?(?:__device__ )?(?:__forceinline__|inline) [\w:<>]+ (\w+)(?:<\w+>)?\(", re.MULTILINE
)


def functions(path: Path) -> set[str]:
    text = path.read_text() if path.exists() else path.with_name(f"{path.name}.jinja").read_text()
    return set(FUNCTION.findall(text))


@pytest.mark.parametrize("path", sorted((PRIMITIVES / "cuda").glob("*.cuh*")), ids=lambda path: path.name.split(".")[0])
def test_the_host_has_every_function_of_the_gpu(path: Path) -> None:
    name = path.name.removesuffix(".jinja")
    given = functions(PRIMITIVES / "cuda" / name)
    assert given
    assert given - functions(PRIMITIVES / "host" / name) == set()


def test_a_kernel_of_the_tests_or_of_an_operator_calls_every_function() -> None:
    folders = Path(__file__).parent, *(path for path in PRIMITIVES.parent.iterdir() if path != PRIMITIVES)
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.*") if path.suffix in CODE]
    own = [path.read_text() for path in (PRIMITIVES / "cuda").glob("*.cuh*")]
    called = set(re.findall(r"\w+", " ".join(texts)))
    called |= {name for name, count in Counter(re.findall(r"\w+", " ".join(own))).items() if count > 1}
    assert {name for path in (PRIMITIVES / "cuda").glob("*.cuh*") for name in functions(path)} - called == set()


def test_the_readme_lists_every_header() -> None:
    readme = (PRIMITIVES / "README.md").read_text()
    names = {path.name.removesuffix(".jinja") for path in PRIMITIVES.glob("cuda/*.cuh*")}
    assert {name for name in names if f"| `{name}` |" not in readme} == set()


def test_the_readme_explains_every_kind_of_finding() -> None:
    runtime = "".join(path.read_text() for path in NATIVE.glob("*.cpp"))
    kinds = set(re.findall(r"(?:report|found|found_shared|found_global|give_up)\(\s*\"(\w+)\"", runtime))
    readme = (PRIMITIVES / "README.md").read_text()
    assert "race" in kinds
    assert {kind for kind in kinds if f"`{kind}`" not in readme} == set()
