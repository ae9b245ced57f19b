"""How well kernels that nobody here wrote are ranked, by measurements that others made of every config.

    python benchmarks/skill.py --spaces DIR [--kernels convolution,gemm] [--gpu A4000] [--sample 300] [--no-search]

DIR is a checkout of the benchmark hub of the auto-tuning community (github.com/AutoTuningAssociation/benchmark_hub):
kernels, and what each config of them took on GPUs. Each kernel becomes an operator's folder in a temporary place, with
no work declared; configs drawn at random are compiled for the recorded GPU and predicted, and the order is held against
the times. "best of 10" is the sample's optimum over the best time among the ten configs that are predicted best; beside
it, in parentheses, stands the expectation for ten configs drawn at random. A prediction is useful where it is larger.
Searches run on the whole recording, with and without a prior, which is learnt from what is predicted of the sample; ±
is one standard error.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Sample:
    """Configs of a recording, by index, with what they took and what they are predicted to cost (inf: no launch)."""

    recording: Recording
    indices: Array
    predicted: Array
    seconds: float  # of CPU that predicting took, without compiling
    classes: tuple[str, ...]  # of kernels, as `evaluate.predict.classes` tells them apart
    target: GPU

    @property
    def times(self) -> Array:
        return self.recording.values[self.indices]

    @property
    def spearman(self) -> float:
        return float(spearmanr(self.predicted, self.times).statistic)

    @property
    def residuals(self) -> Array:
        """Measured over predicted time at boost clock, minus 1, of those that are predicted to launch."""
        launched = np.isfinite(self.predicted)
        predicted_ms = self.predicted[launched] / (self.target.device.clock_mhz * 1e3)
        return self.times[launched] / predicted_ms - 1

    def best_of(self, count: int) -> float:
        """The optimum's share that the best of those holds which are predicted best."""
        first = np.argsort(self.predicted, kind="stable")[:count]
        return float(self.times.min() / self.times[first].min())

    def random_best_of(self, count: int) -> float:
        """The expectation of the same for configs that are drawn at random, without replacement."""
        times = np.sort(self.times)
        total = len(times)
        # The best of the drawn ones has rank i if the others are drawn from those behind it.
        chances = [comb(total - 1 - i, count - 1) / comb(total, count) for i in range(total)]
        return float(np.dot(chances, times[0] / times))


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
    parser.add_argument("--gpu", help="whose recording is held against (default: one for each kernel)")
    parser.add_argument("--sample", type=int, default=300, help="configs that are drawn (default: %(default)s)")
    parser.add_argument("--search", action=argparse.BooleanOptionalAction, default=True, help="search the recordings")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="leave costs and times there, as NumPy files")
    return parser.parse_args()


def predicted(space: Recorded, hub: Path, name: str, count: int) -> Sample:
    """A random sample of what was recorded, and what is predicted of it."""
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
    """Ten searches with the order, and ten without: the optimum's share after some tries."""
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
