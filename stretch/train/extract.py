"""A trained design as a network and as a bundle."""

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from torch import nn

from predictors.errors import StretchError
from predictors.files import write_whole
from scheduler.bundle.agreement import Agreement
from stretch.planning.design.branch_design import design_to_toml
from stretch.planning.plan import evaluate as evaluate_plan
from stretch.stages.branched import Branched
from stretch.stages.build import BATCH, HELD_BACK, RUN_IMAGES, compare_with_original
from stretch.stages.design import read_design
from stretch.stages.rounded import Ranges, RoundedModel
from stretch.train.folder import BEST, RunFolder
from stretch.train.images import Normalise, preprocessing
from stretch.train.loop import evaluate
from stretch.train.prepare import TrainingJob, prepare, sample
from stretch.train.supernet import Subnet, Supernet
from stretch.transform.calibrate.split import Images
from stretch.transform.model import BranchedModel
from stretch.transform.refine import fingerprint
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
    #: With the original, on some of the run's test images, or without labels on those held back; of its files, too, where a bundle was written.
    agreement: Agreement | None
    bundle: Path | None  # Folder of the bundle, where one was written.
    checks: dict[str, Any]  # Numeric checks of the bundle; empty without one.
    ranking: RankingAnswer | None = None  # Of the supernet's designs, if requested.
    warnings: list[str]  # Warnings for the user.


def extract(
    folder: Path, out: Path, *, design: Path | None = None, bundle: bool = True, controls: bool = True, trust_code: bool = False
) -> ExtractAnswer:
    """Extract a design from a run, evaluate it, and write its weights and a bundle.

    Args:
        out: Folder for ``model.safetensors``, ``design.toml`` and ``bundle``.
        design: A design file in the supernet's pool or within its range; None for that of the run.
    """
    job, weights = open_run(folder, trust_code=trust_code)
    recipe = job.recipe
    net = recipe.supernet
    chosen = job.designs[0] if design is None else read_design(design, job.captured.graph, job.profile)
    train_set, test_set = job.images()
    reference = job.captured.module.eval() if recipe.data.labels == "none" else None
    normalise = Normalise(*train_set.moments(), torch.device("cpu"))
    config = msgspec.structs.replace(recipe.train, channels_last=False)
    ranges: Ranges = {}
    if net is None:
        if chosen != job.designs[0]:
            raise StretchError("the run trained one network, of another design", "leave --design out")
        model = BranchedModel(job.captured.graph, chosen).eval()
        trained: nn.Module = model if recipe.rounding is None else job.rounded(model, None)
        trained.load_state_dict(weights)
        in_supernet = extracted = evaluate(trained, test_set, normalise, config, reference)
        ranges = trained.ranges if isinstance(trained, RoundedModel) else {}
    else:
        supernet = Supernet(job.captured, job.designs, channels_last=False)
        supernet.load_state_dict(weights)
        model = supernet.extract(chosen, sample(train_set, net.images, recipe.train.seed, torch.device("cpu")))
        subnet = next((s for s in supernet.pool if s.design == chosen), None)
        subnet = subnet or Subnet(chosen, supernet.sharing, torch.device("cpu"), channels_last=False)
        subnet.load(supernet.flat)
        # batch-norm statistics are each subnet's own
        for target_buffer, buffer in zip(subnet.model.buffers(), model.buffers(), strict=True):
            target_buffer.copy_(buffer)
        in_supernet = evaluate(subnet.model, test_set, normalise, config)
        extracted = evaluate(model, test_set, normalise, config)
    write_tensors(out / WEIGHTS, model.state_dict())
    write_whole(out / DESIGN, design_to_toml(chosen).encode(), "design")
    # preprocessed without randomness
    subsets = (train_set.subset(RANGES), test_set.subset(HELD_BACK))
    fitted, held_back = ([normalise(batch.cpu()) for batch, _ in subset.batches(BATCH)] for subset in subsets)
    images = Images(fitted, held_back)
    measured, _ = compare_with_original(model, job.captured, images.held_back)
    result = None
    if bundle:
        plan = recipe.plan if recipe.rounding is None else msgspec.structs.replace(recipe.plan, precision=job.precision)
        result = Branched(
            evaluate_plan(job.captured.graph, job.profile, chosen, plan),
            "file",
            f"trained by nn-stretch, run {folder.name}",
            [],
            model=model,
            original=job.captured,
            built=fingerprint(model.state_dict()),
            agreement=measured,
            images=images,
            run_images=RUN_IMAGES,
            preprocessing=preprocessing(train_set),
            ranges=ranges,
        )
        result.save(out / "bundle", controls=controls)
    return ExtractAnswer(
        checkpoint=out / WEIGHTS,
        accuracy=None if reference is not None else ExtractedAccuracy(supernet=in_supernet, extracted=extracted),
        agreement=result.agreement if result else measured,
        bundle=result.bundle if result else None,
        checks=result.manifest.checks if result and result.manifest else {},
        warnings=result.warnings if result else [],
    )


def open_run(folder: Path, *, trust_code: bool = False) -> tuple[TrainingJob, dict[str, torch.Tensor]]:
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
    job = prepare(again, folder, trust_code=trust_code)
    if run.facts().get("model") != job.identity["model"]:
        raise StretchError(f"the weights of `{recipe.model}` are not those the run in {folder} started from", "restore the weights file")
    return job, load_file(folder / BEST)
