"""Fit an accuracy predictor to some designs of a trained supernet."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from predictors.errors import MissingBackendError, StretchError, install_line
from predictors.graph import OpGraph
from scheduler.progress import Progress, silent
from stretch.planning.cost.accuracy import FEATURES, AccuracyPredictor, segment_features
from stretch.planning.design.branch_design import BranchDesign
from stretch.train.extract import open_run
from stretch.train.folder import RunFolder
from stretch.train.images import Normalise
from stretch.train.loop import evaluate
from stretch.train.prepare import sample
from stretch.train.supernet import Supernet, designs_between

Floats = NDArray[np.float64]

#: Minimum number of designs for features of several segments.
MIN_SAMPLES = 12
#: Candidates for the weight of the ridge penalty, on features of unit variance.
PENALTIES = np.logspace(-3, 2, 11)


@dataclass(frozen=True)
class FittedRanking:
    """A predictor and the data that it was fitted to."""

    predictor: AccuracyPredictor  # Fitted predictor.
    designs: list[BranchDesign]  # Designs of the fit.
    measured: list[float]  # Top-1 accuracy of each design in the supernet, with its own statistics.
    held_out: list[float]  # Top-1 accuracy predicted for each design from all others.


def check_rank(folder: Path, count: int) -> None:
    """Refuse runs that cannot be ranked, before any computation."""
    if count < MIN_SAMPLES:
        raise StretchError(f"{count} designs are too few to rank", f"ask for {MIN_SAMPLES} or more")
    if RunFolder(folder).recipe().supernet is None:
        raise StretchError(f"the run in {folder} trained one network, there is nothing to rank", "rank the designs of a supernet")


def rank(folder: Path, count: int, progress: Progress = silent) -> FittedRanking:
    """Evaluate subnets of a trained supernet and fit an accuracy predictor."""
    check_rank(folder, count)
    job, weights = open_run(folder)
    recipe, net = job.recipe, job.recipe.supernet
    assert net is not None
    device = torch.device("cuda" if torch.cuda.is_available() and recipe.data.device != "cpu" else "cpu")
    train_set, test_set = job.images()
    normalise = Normalise(*train_set.moments(), device)
    train_config = msgspec.structs.replace(recipe.train, channels_last=False)
    supernet = Supernet(job.captured, job.designs, device, channels_last=False)
    supernet.load_state_dict(weights)
    batches = sample(train_set, net.images, recipe.train.seed, device)
    graph = job.captured.graph
    designs = list(job.designs)[:count]
    new_designs = [d for d in designs_between(graph, job.designs, count, net.macs, seed=recipe.train.seed) if d not in designs]
    designs += new_designs[: count - len(designs)]
    measured = []
    for number, design in enumerate(designs):
        progress(f"design {number + 1} of {len(designs)}")
        model = supernet.extract(design, batches)
        measured.append(evaluate(model, test_set.to(device), normalise, train_config))
    predictor, held_out = fit(graph, designs, measured)
    return FittedRanking(predictor, designs, measured, held_out)


def fit(graph: OpGraph, designs: Sequence[BranchDesign], accuracies: Sequence[float]) -> tuple[AccuracyPredictor, list[float]]:
    """Fit a ridge regression of accuracies on the features of the branched segments.

    The penalty is chosen by leaving one design out. The quality of the ranking is measured on
    predictions for which neither the penalty nor the weights used the design.
    """
    try:
        import sklearn  # noqa: F401 - its absence is reported before any computation
        from scipy.stats import spearmanr
    except ModuleNotFoundError as error:
        raise MissingBackendError(f"ranking needs {error.name}, which is not installed", install_line("train")) from error
    y = np.array(accuracies, dtype=np.float64)
    if np.ptp(y) == 0:
        raise StretchError("all designs have the same accuracy, there is nothing to rank", "train the supernet for longer")
    rows = [segment_features(graph, design) for design in designs]
    names = sorted({name for row in rows for name in row}, key=lambda n: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", n)])
    x = np.array([np.concatenate([row.get(name, np.zeros(len(FEATURES))) for name in names]) for row in rows])
    held_out = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        base, weights = _ridge(x[rest], y[rest])
        held_out.append(float(base + x[i] @ weights))
    base, weights = _ridge(x, y)
    correlation_test = spearmanr(y, held_out)
    # Equal predictions for all have no order.
    correlation, p_value = (0.0, 1.0) if np.ptp(held_out) == 0 else (float(correlation_test.statistic), float(correlation_test.pvalue))
    by_segment = {name: tuple(float(w) for w in part) for name, part in zip(names, weights.reshape(len(names), -1), strict=True)}
    rmse = float(np.sqrt(np.mean((y - np.array(held_out)) ** 2)))
    predictor = AccuracyPredictor(
        model=graph.name, base=float(base), weights=by_segment, designs=len(y), rank_correlation=correlation, p_value=p_value, rmse=rmse
    )
    return predictor, held_out


def _ridge(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Return the intercept and the weights, with the penalty chosen by leaving one row out."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    ridge = RidgeCV(PENALTIES).fit(scaler.fit_transform(x), y)
    weights = ridge.coef_ / scaler.scale_
    return float(ridge.intercept_ - scaler.mean_ @ weights), weights
