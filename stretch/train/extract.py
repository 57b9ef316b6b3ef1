"""A trained design as a network and as a bundle, and the accuracy predictor of a supernet's designs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from predictors.errors import MissingBackendError, StretchError, install_line
from predictors.files import write_whole
from predictors.graph import OpGraph
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest
from scheduler.progress import Progress, silent
from stretch import __version__
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.planning.cost.accuracy import FEATURES, AccuracyPredictor, segment_features
from stretch.planning.design.branch_design import BranchDesign, design_to_toml
from stretch.planning.messages import as_key, errors_spelled
from stretch.planning.plan import evaluate as evaluate_plan
from stretch.stages.build import BATCH, HELD_BACK, RUN_IMAGES, Images, build_control, compare_on, with_files
from stretch.stages.design import read_design
from stretch.stages.rounded import Ranges, RoundedModel
from stretch.train.folder import BEST, RunFolder
from stretch.train.images import Normalise, preprocessing
from stretch.train.loop import evaluate
from stretch.train.prepare import Prepared, prepare, sample
from stretch.train.supernet import Subnet, Supernet, designs_between
from stretch.transform.model import BranchedModel
from stretch.transform.tensors import write_tensors

WEIGHTS, DESIGN = "model.safetensors", "design.toml"

#: Number of training images for int8 ranges.
RANGES = 64


class ExtractedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Top-1 accuracy of an extracted design."""

    supernet: float  # Within the run.
    extracted: float  # Of the extracted network.
    source: str = "measured"  # Where the figures come from.


class RankingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of an accuracy predictor's ranking of designs."""

    file: Path  # Of the predictor.
    designs: int  # Number of designs it was fitted to.
    rank_correlation: float  # Spearman's, on held-out designs.
    p_value: float  # Of that correlation.
    rmse: float  # Of the same predictions.
    source: str = "measured"  # Where the figures come from.


class ExtractAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A design extracted from a run."""

    checkpoint: Path  # Its weights.
    accuracy: ExtractedAccuracy | None  # Of those, on the run's test images; None of a run without labels.
    agreement: Agreement | None  # With the original, on some of the run's test images, or without labels on those held back.
    bundle: Path | None  # Folder of the bundle, where one was written.
    checks: dict[str, Any]  # Numeric checks of the bundle; empty without one.
    ranking: RankingAnswer | None  # Of the supernet's designs, if requested.
    warnings: list[str]  # What a person should know.


@dataclass(frozen=True)
class Extracted:
    """A design extracted from a run."""

    model: BranchedModel
    design: BranchDesign
    checkpoint: Path  # Of its weights.
    bundle: Path | None  # None if none was written.
    inside: float  # Top-1 of the same weights within the supernet, or in the run; without labels the share of the original's classes.
    extracted: float  # The same of the extracted network.
    labelled: bool  # Whether the run's images have labels.
    #: With the original, on some of the run's test images or those held back; of its files, too, where a bundle was written.
    agreement: Agreement | None
    manifest: Manifest | None  # Of the bundle.


def extract(
    folder: Path, out: Path, *, design: Path | None = None, bundle: bool = True, controls: bool = True, trust_code: bool = False
) -> Extracted:
    """Extract a design from a run, evaluate it, and write its weights and a bundle.

    Args:
        out: Folder for ``model.safetensors``, ``design.toml`` and ``bundle``.
        design: A design file in the supernet's pool or within its range; None for that of the run.
    """
    ready, weights = open_run(folder, trust_code=trust_code)
    recipe = ready.recipe
    net = recipe.supernet
    wanted = ready.designs[0] if design is None else read_design(design, ready.captured.graph, ready.profile)
    train_set, test_set = ready.images()
    labelled = recipe.data.labels != "none"
    reference = None if labelled else ready.captured.module.eval()
    normalise = Normalise(*train_set.moments(), torch.device("cpu"))
    plain = msgspec.structs.replace(recipe.train, channels_last=False)
    ranges: Ranges = {}
    if net is None:
        if wanted != ready.designs[0]:
            raise StretchError("the run trained one network, of another design", "leave --design out")
        model = BranchedModel(ready.captured.graph, wanted).eval()
        trained: nn.Module = model if recipe.rounding is None else ready.rounded(model, None)
        trained.load_state_dict(weights)
        inside = extracted = evaluate(trained, test_set, normalise, plain, reference)
        ranges = trained.ranges if isinstance(trained, RoundedModel) else {}
    else:
        supernet = Supernet(ready.captured, ready.designs, channels_last=False)
        supernet.load_state_dict(weights)
        model = supernet.extract(wanted, sample(train_set, net.images, recipe.train.seed, torch.device("cpu")))
        subnet = next((s for s in supernet.pool if s.design == wanted), None)
        subnet = subnet or Subnet(wanted, supernet.sharing, torch.device("cpu"), channels_last=False)
        subnet.load(supernet.flat)
        # batch-norm statistics are each subnet's own
        for mine, there in zip(subnet.model.buffers(), model.buffers(), strict=True):
            mine.copy_(there)
        inside = evaluate(subnet.model, test_set, normalise, plain)
        extracted = evaluate(model, test_set, normalise, plain)
    write_tensors(out / WEIGHTS, model.state_dict())
    write_whole(out / DESIGN, design_to_toml(wanted).encode(), "design")
    # preprocessed without randomness
    some = (train_set.some(RANGES), test_set.some(HELD_BACK))
    images = Images(*([normalise(batch.cpu()) for batch, _ in source.batches(BATCH)] for source in some))
    measured, _ = compare_on(model, ready.captured, images.held_back)
    manifest, target = None, out / "bundle" if bundle else None
    if target is not None:
        plan = recipe.plan if recipe.rounding is None else msgspec.structs.replace(recipe.plan, precision=ready.precision)
        with errors_spelled(as_key):
            planned = evaluate_plan(ready.captured.graph, ready.profile, wanted, plan)
        control = build_control(ready.captured, planned) if controls else None
        known = {"preprocessing": preprocessing(train_set), "ranges": ranges}
        facts = BundleFacts.of(planned, "file", f"trained by nn-stretch, run {folder.name}", **known)

        def agreeing(files: Bundle) -> Agreement | None:
            return with_files(measured, files, ready.captured, images, RUN_IMAGES, None, [])

        manifest = export_bundle(target, ready.captured, model, control, facts, __version__, controls=controls, agreeing=agreeing)
    agreement = measured if manifest is None else manifest.agreement
    return Extracted(model, wanted, out / WEIGHTS, target, inside, extracted, labelled, agreement, manifest)


Floats = NDArray[np.float64]

#: Fewer designs than this say nothing about features of several segments.
LEAST = 12
#: Weights of the ridge penalty that are tried, on features of unit variance.
PENALTIES = np.logspace(-3, 2, 11)


@dataclass(frozen=True)
class Ranked:
    """A predictor and what it was fitted to."""

    predictor: AccuracyPredictor  # The predictor.
    designs: list[BranchDesign]  # The designs.
    measured: list[float]  # Top-1 of each, in the supernet, with statistics of its own.
    held_out: list[float]  # Top-1 predicted for each from all others.


def check_rank(folder: Path, count: int) -> None:
    """Refuse networks that cannot be ranked, before anything is computed."""
    if count < LEAST:
        raise StretchError(f"{count} designs are too few to rank", f"ask for {LEAST} or more")
    if RunFolder(folder).recipe().supernet is None:
        raise StretchError(f"the run in {folder} trained one network, there is nothing to rank", "rank the designs of a supernet")


def rank(folder: Path, count: int, progress: Progress = silent, *, trust_code: bool = False) -> Ranked:
    """Evaluate subnets of a trained supernet and fit an accuracy predictor."""
    check_rank(folder, count)
    ready, weights = open_run(folder, trust_code=trust_code)
    recipe, net = ready.recipe, ready.recipe.supernet
    assert net is not None
    device = torch.device("cuda" if torch.cuda.is_available() and recipe.data.device != "cpu" else "cpu")
    train_set, test_set = ready.images()
    normalise = Normalise(*train_set.moments(), device)
    plain = msgspec.structs.replace(recipe.train, channels_last=False)
    supernet = Supernet(ready.captured, ready.designs, device, channels_last=False)
    supernet.load_state_dict(weights)
    batches = sample(train_set, net.images, recipe.train.seed, device)
    graph = ready.captured.graph
    designs = list(ready.designs)[:count]
    more = [d for d in designs_between(graph, ready.designs, count, net.macs, seed=recipe.train.seed) if d not in designs]
    designs += more[: count - len(designs)]
    measured = []
    for number, design in enumerate(designs):
        progress(f"design {number + 1} of {len(designs)}")
        model = supernet.extract(design, batches)
        measured.append(evaluate(model, test_set.to(device), normalise, plain))
    predictor, held_out = fit(graph, designs, measured)
    return Ranked(predictor, designs, measured, held_out)


def fit(graph: OpGraph, designs: Sequence[BranchDesign], accuracies: Sequence[float]) -> tuple[AccuracyPredictor, list[float]]:
    """Ridge regression of accuracies on the features of the branched segments.

    The penalty is chosen by leaving one design out. How well the predictor ranks is measured
    on predictions for which the design itself had no part in the choice either.
    """
    try:
        import sklearn  # noqa: F401 - it is missed before anything is computed
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
    ranked = {"designs": len(y), "rank_correlation": correlation, "p_value": p_value, "rmse": rmse}
    return AccuracyPredictor(model=graph.name, base=float(base), weights=by_segment, **ranked), held_out


def _ridge(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Intercept and weights, the penalty chosen by leaving one row out."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    ridge = RidgeCV(PENALTIES).fit(scaler.fit_transform(x), y)
    weights = ridge.coef_ / scaler.scale_
    return float(ridge.intercept_ - scaler.mean_ @ weights), weights


def open_run(folder: Path, *, trust_code: bool = False) -> tuple[Prepared, dict[str, torch.Tensor]]:
    """A run's prepared recipe, with the trained designs, and its best weights."""
    run = RunFolder(folder)
    recipe = run.recipe()
    if not (folder / BEST).is_file():
        raise StretchError(f"the run in {folder} has no weights yet", "wait for its first epoch, or go on with `stretch train --resume`")
    stored = tuple(str(path.relative_to(folder)) for path in run.designs())
    net = recipe.supernet
    again = (
        msgspec.structs.replace(recipe, design=stored[0])
        if net is None
        else msgspec.structs.replace(recipe, supernet=msgspec.structs.replace(net, designs=stored))
    )
    ready = prepare(again, folder, trust_code=trust_code)
    if run.facts().get("model") != ready.identity["model"]:
        raise StretchError(f"the weights of `{recipe.model}` are not those the run in {folder} started from", "restore the weights file")
    return ready, load_file(folder / BEST)
