"""Tests of the order in which attempts are ranked."""

from tuner.results.attempt import Attempt, Identity, Lint, Prediction, Resources
from tuner.results.ranking import order

IDENTITY = Identity("op", "impl", "{}", "sm_90a", "0" * 16, "-arch=sm_90a", "nvrtc 13.4", "predicted/1")


def test_what_breaks_a_rule_stands_behind_what_is_clean_however_little_it_costs() -> None:
    def tried(cost: float, lint: Lint) -> Attempt:
        used = Resources(128, 0, 4096, 128, 2, "registers", "ab", lint)
        return Attempt(IDENTITY, {}, resources=used, prediction=Prediction(cost, {}, "tensor", "predicted/1"))

    broken, clean = tried(1.0, Lint(("serialized",))), tried(2.0, Lint(unchecked=("calls",)))
    assert sorted([broken, clean], key=lambda attempt: order(attempt, attempt.value or 0.0)) == [clean, broken]
