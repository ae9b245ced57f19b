"""Tests of attempts: the value that a search minimises."""

from tuner.results.attempt import Attempt, Failed, Identity, Prediction, Stage

IDENTITY = Identity("op", "impl", "{}", "sm_90a", "0" * 16, "-arch=sm_90a", "nvrtc 13.4", "predicted/1")


def test_a_failed_attempt_has_no_value() -> None:
    prediction = Prediction(1.5, {}, "tensor", "predicted/1")
    assert Attempt(IDENTITY, {}, prediction=prediction).value == 1.5
    assert Attempt(IDENTITY, {}, failure=Failed(Stage.COMPILE, "no"), prediction=prediction).value is None
