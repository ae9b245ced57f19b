"""Tests of Optuna's samplers, and of others by module and class, on the valid set of a space."""

from dataclasses import dataclass
from importlib.util import find_spec

import optuna
import pytest

from tuner.errors import UsageError
from tuner.search.request import SearchRequest
from tuner.search.sampler import Sampler, check_method
from tuner.spec import Constraint, Space

needs_cmaes = pytest.mark.skipif(find_spec("cmaes") is None, reason="needs cmaes")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@dataclass(frozen=True)
class Config:
    rows: int
    columns: int
    ordered: bool


SPACE: Space[Config] = Space(
    Config,
    choices={"rows": (8, 16, 32, 64), "columns": (8, 16, 32, 64, 128), "ordered": (False, True)},
    constraints=(Constraint("a tile fits", lambda c: c.rows * c.columns <= 2048),),
)


class OwnSampler(optuna.samplers.RandomSampler):
    """A sampler of a user."""


def cost(index: int) -> float | None:
    config = SPACE[index]
    return None if config.rows == 64 and config.ordered else 1000.0 - config.rows * config.columns - config.ordered


def run(method: str, seed: int = 0, count: int = 24) -> list[int]:
    sampler, asked = Sampler(SPACE, method=method, seed=seed, starts=(3,)), []
    while len(asked) < count and (batch := sampler.ask(2)):
        asked += batch
        for index in batch:
            sampler.tell(index, cost(index))
    return asked


METHODS = [
    pytest.param("cmaes", marks=needs_cmaes),
    "nsgaii",
    pytest.param("optuna-gp", marks=needs_torch),
    "optuna.samplers:TPESampler",
    f"{__name__}:OwnSampler",
]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module() -> object:
    import types

    module = types.ModuleType(__name__)
    module.OwnSampler = OwnSampler  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("method", METHODS)
def test_a_sampler_proposes_valid_configs_once_each_and_the_same_for_a_seed(method: str) -> None:
    first = run(method)
    assert first[0] == 3  # the starts of a search come first, whoever samples
    assert len(set(first)) == len(first) == 24
    assert all(0 <= index < len(SPACE) for index in first)
    assert run(method) == first
    assert run(method, seed=1) != first


@pytest.mark.parametrize("method", METHODS)
def test_a_sampler_exhausts_a_space(method: str) -> None:
    assert sorted(run(method, count=100)) == list(range(len(SPACE)))


def test_a_sampler_learns_the_value_of_the_config_that_ran_in_place_of_its_suggestion() -> None:
    from tuner.search.sampler.optuna_samplers import Plugged

    sampler = Sampler(SPACE, method="nsgaii", seed=0)
    for _ in range(20):
        (index,) = sampler.ask(1)
        sampler.tell(index, cost(index))
    sampler.ask(1)
    strategy = sampler._strategy
    assert isinstance(strategy, Plugged)
    finished = [t for t in strategy._study.trials if t.state is optuna.trial.TrialState.COMPLETE]
    assert finished
    for trial in finished:
        values = {n: strategy._orders[n][v] if n in strategy._orders else v for n, v in trial.params.items()}
        assert trial.value == cost(SPACE.index(Config(**values)))


def test_a_sampler_that_does_not_exist_is_named_before_the_search() -> None:
    with pytest.raises(UsageError, match=r"unknown sampler 'nsgai'.*did you mean nsgaii"):
        check_method("nsgai")
    with pytest.raises(UsageError, match="no_such_module"):
        check_method("no_such_module:Sampler")
    with pytest.raises(UsageError, match="no class TPE that derives"):
        check_method("optuna.samplers:TPE")
    with pytest.raises(UsageError, match="no class Study that derives"):
        check_method("optuna.study:Study")


def test_a_stored_name_of_a_class_imports_nothing() -> None:
    """A request that is made from a row of a database only names its sampler."""
    from tuner import operators
    from tuner.arch import gpu

    operator = operators.load("flash_attention")
    request = SearchRequest(operator, operator.problem(), gpu("sm_90a"), method="no_such_module:Sampler")
    assert request.method == "no_such_module:Sampler"
