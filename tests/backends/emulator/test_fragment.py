"""Tests of fragment layouts: each names every element of its tile exactly once."""

import numpy as np
import pytest

from tests.backends.emulator.emulated import Call, Uninitialized, launch
from tuner.backends.emulator import Mode

TILES = {
    "M16N8K16::A": (16, 16),
    "M16N8K16::B": (16, 8),
    "M16N8K16::C": (16, 8),
    "M16N8K8::A": (16, 8),
    "M16N8K8::B": (8, 8),
    "M16N8K8Tf32::A": (16, 8),
    "M16N8K8Tf32::B": (8, 8),
    "Matrix8x8": (8, 8),
    "Matrix8x8Trans": (8, 8),
}


@pytest.fixture(scope="module")
def layouts() -> np.ndarray:
    """[fragment][lane][element]: row * 256 + column, or -1."""
    call = Call("primitives_sm80.cu", "layouts", {}, {"out": Uninitialized(np.int32, (9, 32, 8))})
    outputs, run = launch(call, Mode())
    assert run.findings == ()
    return outputs["out"]


@pytest.mark.parametrize("name", TILES)
def test_a_layout_is_a_bijection_onto_its_tile(layouts: np.ndarray, name: str) -> None:
    places = layouts[list(TILES).index(name)]
    rows, cols = TILES[name]
    assert sorted(places[places >= 0]) == [row * 256 + col for row in range(rows) for col in range(cols)]


def test_layouts_are_those_of_the_ptx_isa(layouts: np.ndarray) -> None:
    """Lane 13 is the fourth group's second lane: rows or columns 3 and 11, pairs from 2."""
    at = {name: [divmod(int(place), 256) for place in layouts[i, 13] if place >= 0] for i, name in enumerate(TILES)}
    assert at["M16N8K16::A"] == [(3, 2), (3, 3), (11, 2), (11, 3), (3, 10), (3, 11), (11, 10), (11, 11)]
    assert at["M16N8K16::B"] == [(2, 3), (3, 3), (10, 3), (11, 3)]
    assert at["M16N8K16::C"] == [(3, 2), (3, 3), (11, 2), (11, 3)]
    assert at["M16N8K8Tf32::A"] == [(3, 1), (11, 1), (3, 5), (11, 5)]
