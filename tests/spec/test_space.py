"""Tests of search spaces: enumeration, refusals, neighbours."""

from dataclasses import dataclass, make_dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import TemplateError, UsageError
from tuner.spec.space import Constraint, Space
from tuner.spec.stages import Stages


@dataclass(frozen=True, slots=True)
class Config:
    BT: int
    layout: str
    threads: int
    prefetch: bool


CHOICES = {"BT": (16, 32, 64), "layout": ("row", "column"), "threads": (32, 64, 128), "prefetch": (False, True)}
ONE_WARP = Constraint("one warp owns 16 rows", lambda c: c.threads == 2 * c.BT)
ROWS_PREFETCH = Constraint("only rows are prefetched", lambda c: ~c.prefetch | (c.layout == "row"))
SPACE = Space(Config, CHOICES, (ONE_WARP, ROWS_PREFETCH))


def test_the_valid_set_is_the_product_less_what_a_constraint_refuses_in_the_order_of_the_product() -> None:
    by_hand = [
        Config(*values)
        for values in product(*CHOICES.values())
        if values[2] == 2 * values[0] and (not values[3] or values[1] == "row")
    ]
    assert list(SPACE) == by_hand
    assert len(SPACE) == len(by_hand) == 9


def test_configs_hold_python_scalars() -> None:
    config = SPACE[0]
    assert [type(value) for value in (config.BT, config.layout, config.prefetch)] == [int, str, bool]


def test_a_config_is_found_again_at_its_index() -> None:
    assert [SPACE.index(config) for config in SPACE] == list(range(len(SPACE)))


def test_a_parameter_may_have_more_choices_than_a_byte_counts() -> None:
    space = Space(Config, {**CHOICES, "BT": tuple(range(300))})
    assert space[len(space) - 1].BT == 299


def test_the_index_of_a_refused_config_is_an_error_that_says_why() -> None:
    with pytest.raises(UsageError, match="one warp owns 16 rows"):
        SPACE.index(Config(16, "row", 64, False))


def test_a_value_that_is_no_choice_is_refused_with_the_choices() -> None:
    assert SPACE.refusal(Config(48, "row", 32, False)) == "BT=48 is not among 16, 32, 64"


def test_a_constraint_that_cannot_be_computed_on_a_value_that_is_no_choice_says_nothing() -> None:
    table = np.ones(65)
    space = Space(Config, CHOICES, (Constraint("a table knows it", lambda c: table[c.BT] > 0),))
    assert space.refusals(Config(96, "row", 32, False)) == ("BT=96 is not among 16, 32, 64",)


def test_every_violated_constraint_is_named_in_order() -> None:
    config = Config(16, "column", 64, True)
    assert SPACE.refusals(config) == ("one warp owns 16 rows", "only rows are prefetched")
    assert SPACE.refusal(config) == "one warp owns 16 rows"


def test_a_valid_config_has_no_refusal() -> None:
    assert SPACE.refusal(SPACE[3]) is None


def test_neighbours_differ_in_exactly_one_parameter_and_are_all_there() -> None:
    for index in range(len(SPACE)):
        distance = (SPACE.codes != SPACE.codes[index]).sum(axis=1)
        assert SPACE.neighbours(index).tolist() == np.flatnonzero(distance == 1).tolist()


def test_columns_hold_the_values_of_all_valid_configs() -> None:
    assert SPACE.columns.BT.tolist() == [config.BT for config in SPACE]
    assert SPACE.columns.layout.tolist() == [config.layout for config in SPACE]


def test_counts_and_valid_configs_add_up_to_the_product() -> None:
    assert SPACE.counts() == (("one warp owns 16 rows", 24), ("only rows are prefetched", 3))
    assert 24 + 3 + len(SPACE) == SPACE.raw_size == 36


def test_a_space_that_refuses_everything_is_empty() -> None:
    space = Space(Config, CHOICES, (Constraint("nothing runs here", lambda c: c.BT < 0),))
    assert (len(space), list(space), space.counts()) == (0, [], (("nothing runs here", 36),))


def test_a_parameter_with_no_choices_empties_the_space() -> None:
    assert len(Space(Config, {**CHOICES, "threads": ()}, (ONE_WARP,))) == 0


def test_a_constraint_that_reads_nothing_applies_to_all() -> None:
    assert len(Space(Config, CHOICES, (Constraint("needs sm_90a", lambda _: False),))) == 0


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        (lambda c: c.BT == 16 and c.threads == 32, "write & | ~"),
        (lambda c: c.BT if c.prefetch else c.threads, "write & | ~"),
        (lambda c: c.BT & 16, "gives int64, not booleans"),
        (lambda c: c.BK == 16, "'BK' is not a parameter"),
    ],
)
def test_a_constraint_that_cannot_be_computed_on_arrays_is_reported(holds: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        len(Space(Config, CHOICES, (Constraint("small tiles", holds),)))


@pytest.mark.parametrize(("values", "message"), [((16, 32, 16), "repeat"), ((16, "auto"), "several types")])
def test_choices_that_repeat_or_mix_types_are_reported(values: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        len(Space(Config, {**CHOICES, "BT": values}))


def test_of_a_space_that_is_too_large_to_list_only_draws_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.spec.space.MAX_CONFIGS", 10)
    space = Space(Config, CHOICES)
    assert not space.enumerated
    with pytest.raises(TemplateError, match="about 36 configs, too many to enumerate: use draw"):
        list(space)


def vast() -> Space[Any]:
    """10^12 combinations."""
    names = "abcdefghijkl"
    constraint = Constraint("sum", lambda c: (c.a + 3 * c.f + c.l) % 5 != 0)
    return Space(make_dataclass("Vast", list(names), frozen=True), dict.fromkeys(names, range(1, 11)), (constraint,))


def test_draws_from_a_vast_space_are_distinct_valid_configs_found_again_at_their_index() -> None:
    space = vast()
    drawn = space.draw(200, np.random.default_rng(0))
    configs = [space[int(index)] for index in drawn]
    assert len(set(drawn.tolist())) == 200
    assert [space.index(config) for config in configs] == drawn.tolist()
    assert not any(space.refusal(config) for config in configs)


def test_the_length_and_counts_of_a_vast_space_are_estimates_near_the_truth() -> None:
    space = vast()
    ((_, removed),) = space.counts()
    assert len(space) == pytest.approx(0.8e12, rel=0.01)
    assert removed == pytest.approx(0.2e12, rel=0.04)


def test_neighbours_in_a_vast_space_are_all_the_valid_ones() -> None:
    space = vast()
    index = int(space.draw(1, np.random.default_rng(0))[0])
    config = space[index]
    changed = [replace(config, **{name: value}) for name in space.names for value in range(1, 11)]
    expected = {
        space.index(parameter) for parameter in changed if parameter != config and space.refusal(parameter) is None
    }
    assert space.neighbours(index).tolist() == sorted(expected)


def test_every_valid_config_is_as_likely_to_be_sampled_and_their_number_is_estimated_without_bias() -> None:
    stages = Stages({"a": range(4), "b": range(4), "c": range(3)}, (Constraint("sum", lambda c: c.a + c.b < 4),))
    samples = [stages.sample(6, np.random.default_rng(seed)) for seed in range(3000)]
    sampled, times = np.unique(np.concatenate([sample.codes for sample in samples]), axis=0, return_counts=True)
    assert len(sampled) == 30
    assert times == pytest.approx(times.mean(), rel=0.2)  # five standard errors of a count of 600
    assert np.mean([sample.valid for sample in samples]) == pytest.approx(30, rel=0.02)


def test_a_vast_space_whose_constraints_no_sample_passes_says_what_to_do() -> None:
    choices = dict.fromkeys("abcdef", range(50))
    never = Constraint("rare", lambda c: (c.a + c.b + c.c + c.d + c.e + c.f) < 0)
    with pytest.raises(TemplateError, match="put the parameters that constrain each other first"):
        len(Space(make_dataclass("Rare", list(choices)), choices, (never,)))


def test_a_product_of_over_2_to_the_62_is_refused() -> None:
    choices = dict.fromkeys("abcdefgh", range(256))
    with pytest.raises(TemplateError, match=r"1\.8e\+19 combinations"):
        len(Space(make_dataclass("Huge", list(choices)), choices))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(2, 5), st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_staged_enumeration_agrees_with_testing_every_combination(sizes: list[int], modulus: int, last: int) -> None:
    names = [f"p{j}" for j in range(len(sizes))]
    first, other = names[0], names[min(last, len(names) - 1)]
    constraint = Constraint("sum", lambda c: (getattr(c, first) + 2 * getattr(c, other)) % modulus != 0)
    space = Space(make_dataclass("Row", names), dict(zip(names, map(range, sizes), strict=True)), (constraint,))
    expected = [
        row for row in product(*map(range, sizes)) if (row[0] + 2 * row[min(last, len(names) - 1)]) % modulus != 0
    ]
    assert space.codes.tolist() == [list(row) for row in expected]


@pytest.mark.slow
def test_24_million_combinations_with_8_million_valid_are_enumerated() -> None:
    names = [*"abcdefg", "h"]
    powers = tuple(1 << k for k in range(8))
    choices = {**dict.fromkeys(names[:7], powers), "h": tuple(range(1, 13))}
    constraints = (
        Constraint("registers", lambda c: c.a * c.b * c.h <= 4096),
        Constraint("shared memory", lambda c: c.a * (c.g + c.d) * c.h <= 4096),
        Constraint("alignment", lambda c: (c.h % 3 != 0) | (c.c > 4) | (c.f < c.g)),
    )
    space = Space(make_dataclass("Large", names), choices, constraints)
    assert len(space) > 8_000_000
    assert space.raw_size > 24_000_000


def test_a_million_valid_configs_are_enumerated() -> None:
    choices = dict.fromkeys("abcdefg", tuple(1 << k for k in range(8)))
    constraint = Constraint("registers", lambda c: c.a * c.d * c.g <= 1024)
    space = Space(make_dataclass("Million", list(choices)), choices, (constraint,))
    assert 1_000_000 < len(space) < space.raw_size
