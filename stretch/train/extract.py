"""Extract a trained design as a network and as a bundle."""

from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from predictors.devices import load_device
from predictors.errors import StretchError
from predictors.files import write_whole
from scheduler.bundle.agreement import Agreement
from stretch.planning.design.branch_design import BranchDesign, design_to_toml
from stretch.planning.plan import evaluate as evaluate_plan
from stretch.stages.branched import Branched
from stretch.stages.build import BATCH, HELD_BACK, RUN_IMAGES, compare_with_original
from stretch.stages.design import read_design
from stretch.stages.rounded import RoundedModel
from stretch.train.folder import RunFolder
from stretch.train.images import ImageSource, Normalise, preprocessing
from stretch.train.loop import evaluate
from stretch.train.prepare import TrainingJob, sample
from stretch.train.supernet import Supernet
from stretch.transform.calibrate.split import Images
from stretch.transform.model import BranchedModel
from stretch.transform.refine import fingerprint
from stretch.transform.tensors import write_tensors

WEIGHTS, DESIGN = "model.safetensors", "design.toml"

#: Number of training images for int8 ranges.
RANGES = 64


class ExtractedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Top-1 accuracy of an extracted design."""

    supernet: float  # Accuracy within the run, with the same weights and statistics as the extracted network.
    extracted: float  # Accuracy of the extracted network.
    source: str = "measured"  # Where the figures come from.


class RankingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of an accuracy predictor's ranking of designs."""

    file: Path  # File of the predictor.
    designs: int  # Number of designs that the predictor was fitted to.
    rank_correlation: float  # Spearman's rank correlation on held-out designs.
    p_value: float  # P-value of the rank correlation.
    rmse: float  # Root mean squared error on held-out designs.
    source: str = "measured"  # Where the figures come from.


class ExtractAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A design extracted from a run."""

    checkpoint: Path  # File of the weights.
    accuracy: ExtractedAccuracy | None  # Accuracy on the run's test images; None for a run without labels.
    #: Agreement with the original on some of the run's test images, or without labels on held-back ones; and of a bundle's files, if any.
    agreement: Agreement | None
    bundle: Path | None  # Folder of the bundle; None if none was written.
    checks: dict[str, Any]  # Numeric checks of the bundle; empty without one.
    ranking: RankingAnswer | None = None  # Ranking of the supernet's designs, if requested.
    warnings: list[str]  # Warnings for the user.


def extract(folder: Path, out: Path, *, design: Path | None = None, bundle: bool = True, controls: bool = True) -> ExtractAnswer:
    """Extract a design from a run, evaluate it, and write its weights and a bundle.

    Args:
        out: Folder for ``model.safetensors``, ``design.toml`` and ``bundle``.
        design: A design file in the supernet's pool or within its range; None for the run's own design.
    """
    job, weights = open_run(folder)
    recipe, graph = job.recipe, job.captured.graph
    chosen = job.designs[0] if design is None else read_design(design, graph, job.profile)
    train_set, test_set = job.images()
    model, trained = _trained_network(job, weights, chosen, train_set)
    normalise = Normalise(*train_set.moments(), torch.device("cpu"))
    config = msgspec.structs.replace(recipe.train, channels_last=False)
    share = evaluate(trained, test_set, normalise, config) if recipe.data.labels != "none" else None
    write_tensors(out / WEIGHTS, model.state_dict())
    write_whole(out / DESIGN, design_to_toml(chosen).encode(), "design")
    # preprocessed without randomness
    fitted, held_back = (
        [normalise(batch.cpu()) for batch, _ in subset.batches(BATCH)] for subset in (train_set.subset(RANGES), test_set.subset(HELD_BACK))
    )
    images = Images(fitted, held_back)
    agreement, _ = compare_with_original(model, job.captured, images.held_back)
    plan = recipe.plan if recipe.rounding is None else msgspec.structs.replace(recipe.plan, precision=job.precision)
    result = Branched(
        evaluate_plan(graph, job.profile, chosen, plan),
        "file",
        f"trained by nn-stretch, run {folder.name}",
        [],
        model=model,
        original=job.captured,
        built=fingerprint(model.state_dict()),
        agreement=agreement,
        images=images,
        run_images=RUN_IMAGES,
        preprocessing=preprocessing(train_set),
        ranges=trained.ranges if isinstance(trained, RoundedModel) else {},
    )
    if bundle:
        result.save(out / "bundle", controls=controls)
    return ExtractAnswer(
        checkpoint=out / WEIGHTS,
        accuracy=None if share is None else ExtractedAccuracy(supernet=share, extracted=share),
        agreement=result.agreement,
        bundle=result.bundle,
        checks=result.manifest.checks if result.manifest else {},
        warnings=result.warnings,
    )


def open_run(folder: Path) -> tuple[TrainingJob, dict[str, torch.Tensor]]:
    """Load a run's recipe with its network, designs and best weights, from its folder alone."""
    run = RunFolder(folder)
    recipe, weights, original = run.recipe(), run.weights(), run.original()
    profile = load_device(recipe.device)
    designs = [read_design(path, original.graph, profile) for path in run.designs()]
    return TrainingJob(recipe, profile, original, "file", designs, []), weights


def _trained_network(
    job: TrainingJob, weights: dict[str, torch.Tensor], design: BranchDesign, images: ImageSource
) -> tuple[BranchedModel, nn.Module]:
    """Return the network of a design with a run's weights, and the network as trained, which may round."""
    net = job.recipe.supernet
    if net is not None:
        supernet = Supernet(job.captured, job.designs, channels_last=False)
        supernet.load_state_dict(weights)
        model = supernet.extract(design, sample(images, net.images, job.recipe.train.seed, torch.device("cpu")))
        return model, model
    if design != job.designs[0]:
        raise StretchError("the run trained one network, of another design", "leave --design out")
    model = BranchedModel(job.captured.graph, design).eval()
    trained: nn.Module = model if job.recipe.rounding is None else job.rounded(model, None)
    trained.load_state_dict(weights)
    return model, trained
