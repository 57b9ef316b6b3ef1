"""Measurements of an invented network whose losses are known."""

import numpy as np

from stretch.evaluation.sensitivity.fit import fit
from stretch.evaluation.sensitivity.source import trials
from stretch.planning.cost.accuracy import SEEN_FEATURES, ChangedSegment, Measured, MeasuredOn, option_features
from stretch.planning.search.parts import merge_stages
from tests.stretch.planning.spaces import make_space, small_resnet

GRAPH = small_resnet(96)
ON = MeasuredOn(
    weights="w", images=64, held_back=200, pictures="p", device="mi9", processors=("cpu", "gpu"), version="0", date="2026-01-01",
    seconds=1.0, complete=True,
)  # fmt: skip
#: Effects of the deepest branch's depth and of the multiply-accumulates on the logarithm of a loss.
DEEPEST, MACS = -2.0, -1.0


def merged_space(**changes):
    return merge_stages(GRAPH, make_space(GRAPH, **changes))


def true_loss(stages, row):
    features = dict(zip(SEEN_FEATURES, row, strict=True))
    mean = np.mean([0.3 * int(name[1:]) for name in stages])
    return float(np.exp(-2 + mean + 0.5 * np.log(len(stages)) + DEEPEST * features["log_deepest"] + MACS * features["log_macs"]))


def agreement(loss):
    return float(1 / (1 + np.exp(-(1.0 - 1.2 * np.log(loss)))))


def alone(space, count=4, noise=0.0, seed=0):
    """Measurements in which one segment is changed at a time."""
    rng = np.random.default_rng(seed)
    result = []
    for trial in trials(space, count):
        row = tuple(map(float, option_features(trial.options, SEEN_FEATURES)[trial.index]))
        loss = true_loss(trial.stages(space), row) * np.exp(noise * rng.standard_normal())
        changed = ChangedSegment(stages=trial.stages(space), features=row)
        result.append(Measured(segments=(changed,), error=float(1 - np.exp(-loss)), agreement=agreement(loss)))
    return result


def made(space=None, **changes):
    """A sensitivity that is fitted to measurements of single segments."""
    space = space or merged_space()
    return fit(GRAPH.name, "project", space.segments, alone(space, **changes), [], ON)
