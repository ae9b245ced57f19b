"""Measure how well third-party kernels are ranked, against published measurements of every config.

    python benchmarks/skill.py --spaces DIR [--kernels convolution,gemm] [--gpu A4000] [--sample 300] [--no-search]

DIR is a checkout of the benchmark hub of the auto-tuning community (github.com/AutoTuningAssociation/benchmark_hub),
with kernels and the times of all their configs on GPUs. Each kernel becomes a temporary operator without declared work;
random configs are compiled for the recorded GPU and predicted, and their order is compared with the times. "best of 10"
is the sample's optimum over the best time among the ten configs with the best predictions; the expectation for ten
random configs follows in parentheses. A prediction is useful if its value is larger. Searches run on the whole
recording, with and without a prior that is learnt from the predictions of the sample; ± is one standard error.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from skill_spaces import SPACES, Recorded, recording_of, write

from tuner import operators
from tuner.arch import GPU, gpu
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.errors import TunerError
from tuner.evaluate.predict.compiled import predict_config, resources_of
from tuner.results.attempt import Failed
from tuner.search.replay import Replay, files, run
from tuner.search.replay.recording import Recording
from tuner.search.sampler import Sampler, predict
from tuner.spec.instance import Instance
from tuner.spec.space import Array

TRIES = (10, 25, 50)
_HALVES = 200  # of a sample, over which "best of 10" is repeated


@dataclass(frozen=True)
class Sample:
    """Configs of a recording, by index, with their times and predicted costs (inf: they cannot be launched)."""

    recording: Recording
    indices: Array
    predicted: Array
    seconds: float  # CPU time of predicting, without compiling
    classes: tuple[str, ...]  # classes of kernels in `evaluate.predict.classes`
    target: GPU

    @property
    def times(self) -> Array:
        return self.recording.values[self.indices]

    @property
    def spearman(self) -> float:
        return float(spearmanr(self.predicted, self.times).statistic)

    @property
    def residuals(self) -> Array:
        """Return measured over predicted time at boost clock, minus 1, of the configs that are predicted to launch."""
        launched = np.isfinite(self.predicted)
        predicted_ms = self.predicted[launched] / (self.target.device.clock_mhz * 1e3)
        return self.times[launched] / predicted_ms - 1

    def best_of(self, count: int) -> float:
        """Return the optimum over the best time among the `count` configs with the best predictions."""
        first = np.argsort(self.predicted, kind="stable")[:count]
        return float(self.times.min() / self.times[first].min())

    def random_best_of(self, count: int) -> float:
        """The expectation of the same for configs that are drawn at random, without replacement."""
        times = np.sort(self.times)
        total = len(times)
        # The best of the drawn ones has rank i if the others are drawn from those behind it.
        chances = [comb(total - 1 - i, count - 1) / comb(total, count) for i in range(total)]
        return float(np.dot(chances, times[0] / times))

    def halves(self, count: int) -> tuple[float, float, float]:
        """Over random halves of the sample: mean `best_of`, mean `random_best_of`, how often the first is larger."""
        rng, total = np.random.default_rng(0), len(self.indices)
        pairs = []
        for _ in range(_HALVES):
            drawn = rng.permutation(total)[: total // 2]
            half = replace(self, indices=self.indices[drawn], predicted=self.predicted[drawn])
            pairs.append((half.best_of(count), half.random_best_of(count)))
        ours, random = np.array(pairs).T
        return float(ours.mean()), float(random.mean()), float((ours > random).mean())


def main() -> None:
    arguments = _arguments()
    columns = f"{'best of 1':>14}{'of 10':>14}{'of 32':>14}"
    print(f"{'kernel':13}{'GPU':13}{'n':>5}{'Spearman':>10}{columns}{'s/config':>10}   (random)")
    for name in arguments.kernels.split(","):
        space = SPACES[name]
        sample = predicted(space, arguments.spaces, arguments.gpu or space.gpu, arguments.sample)
        shares = "".join(f"{sample.best_of(n):7.3f} ({sample.random_best_of(n):.2f})" for n in (1, 10, 32))
        seconds = sample.seconds / len(sample.indices)
        head = f"{name:13}{arguments.gpu or space.gpu:13}{len(sample.indices):5}"
        print(f"{head}{sample.spearman:10.3f}{shares}{seconds:10.3f}", flush=True)
        low, middle, high = np.quantile(sample.residuals, (0.05, 0.5, 0.95))
        classes = ", ".join(sorted(set(sample.classes)))
        band = f"median {middle:+.3f}, 90 % from {low:+.3f} to {high:+.3f}"
        ours, random, more = sample.halves(10)
        print(f"  best of 10 over {_HALVES} halves of the sample: {ours:.3f} ({random:.3f}), larger in {more:.0%}")
        print(f"  measured over predicted time, minus 1: {band} (class: {classes})", flush=True)
        if arguments.search:
            _print_searches(sample)
        if arguments.dump:
            path = arguments.dump / f"{name}.npz"
            predicted_of = {"cost": sample.predicted, "residual": sample.residuals, "kernels": sample.classes}
            np.savez(path, indices=sample.indices, time=sample.times, **predicted_of)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=Path, required=True, metavar="DIR", help="a checkout of the benchmark hub")
    parser.add_argument("--kernels", default=",".join(SPACES), help="default: %(default)s")
    parser.add_argument("--gpu", help="GPU of the recording (default: one for each kernel)")
    parser.add_argument("--sample", type=int, default=300, help="number of random configs (default: %(default)s)")
    parser.add_argument("--search", action=argparse.BooleanOptionalAction, default=True, help="search the recordings")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write costs and times to DIR as NumPy files")
    return parser.parse_args()


def predicted(space: Recorded, hub: Path, name: str, count: int) -> Sample:
    """Return a random sample of the recording with its predictions."""
    recording = files.read(recording_of(space, hub, name))
    indices = _drawn(space, recording, count)
    with tempfile.TemporaryDirectory() as folder:
        write(space, hub, recording.space.choices, Path(folder))
        operators.add_folder(Path(folder))
        costs, classes, seconds = _costs(space, recording, indices, gpu(name))
        operators.__path__.remove(folder)
    return Sample(recording, indices, costs, seconds, classes, gpu(name))


def _drawn(space: Recorded, recording: Recording, count: int) -> Array:
    worked = ~np.isnan(recording.values)
    for parameter, value in dict(space.only).items():
        names = list(recording.space.choices)
        code = list(recording.space.choices[parameter]).index(value)
        worked &= recording.space.codes[:, names.index(parameter)] == code
    drawn = np.flatnonzero(worked)
    return np.sort(np.random.default_rng(0).permutation(drawn)[:count])


def _costs(space: Recorded, recording: Recording, indices: Array, target: GPU) -> tuple[Array, tuple[str, ...], float]:
    operator = operators.load(space.name)
    implementation = operators.implementation(space.name, "recorded")
    configs = (recording.space[int(index)] for index in indices)
    names = list(recording.space.choices)
    every = [
        Instance(
            operator,
            implementation,
            operator.problem(),
            implementation.config(**{name: getattr(config, name) for name in names}),
        )
        for config in configs
    ]
    costs, classes, seconds = np.full(len(indices), np.inf), [""] * len(indices), 0.0
    options = Options(target.arch.name)
    with Compiler() as compiler:
        for position, outcome in compiler.compile_many((render(instance), options) for instance in every):
            if isinstance(outcome, Failed):
                print(f"  {every[position].config} does not compile: {outcome.reason}", file=sys.stderr)
            elif resources_of(outcome, every[position].plan(), target).ctas_per_sm:
                began = time.thread_time()
                prediction = predict_config(every[position], target, outcome)
                costs[position], classes[position] = prediction.cost, prediction.kernels
                seconds += time.thread_time() - began
    return costs, tuple(classes), seconds


def _print_searches(sample: Sample) -> None:
    """Print ten searches with the prior and ten without: the fraction of the optimum after some tries."""
    order = predict(sample.recording.space, dict(zip(sample.indices.tolist(), sample.predicted.tolist(), strict=True)))
    for prior, words in ((None, "without an order"), (order, "with the order")):
        fractions = _searched(sample.recording, prior).fractions[:, [count - 1 for count in TRIES]]
        means, errors = fractions.mean(0), fractions.std(0, ddof=1) / np.sqrt(len(fractions))
        shares = ", ".join(
            f"{n}: {mean:.3f} ± {error:.3f}" for n, mean, error in zip(TRIES, means, errors, strict=True)
        )
        print(f"  searches {words:17} {shares}", flush=True)


def _searched(recording: Recording, prior: Array | None, seeds: int = 10) -> Replay:
    def search(seed: int, evaluate) -> None:  # type: ignore[no-untyped-def]
        sampler = Sampler(recording.space, seed=seed, prior=prior)
        for _ in range(max(TRIES)):
            for index in sampler.ask(1):
                sampler.tell(index, evaluate(index))

    runs = [run(recording, search, max(TRIES), seed, noise=True) for seed in range(seeds)]
    return Replay(recording, "gp", np.array(runs))


if __name__ == "__main__":
    try:
        main()
    except TunerError as error:
        sys.exit(f"skill: {error}")
