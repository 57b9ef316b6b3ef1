"""Extraction of a trained design as a network and as a bundle."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import nn

from predictors.errors import StretchError
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.preprocessing import Preprocessing
from stretch.planning.design.branch_design import BranchDesign, design_to_toml
from stretch.planning.messages import as_key, errors_spelled
from stretch.planning.plan import evaluate as evaluate_plan
from stretch.stages.build import BATCH, HELD_BACK, Images, build_control, compare_on, run_on, write_bundle
from stretch.stages.design import read_design
from stretch.train.augment import Normalise, preprocessing
from stretch.train.finished import open_run
from stretch.train.folder import write_text
from stretch.train.loop import evaluate
from stretch.train.prepare import Prepared, sample
from stretch.train.rounded import Ranges, RoundedModel
from stretch.train.source import ImageSource
from stretch.train.supernet import Subnet, Supernet
from stretch.transform.model import BranchedModel
from stretch.transform.tensors import write_tensors

if TYPE_CHECKING:
    from scheduler.bundle.manifest import Manifest

WEIGHTS, DESIGN = "model.safetensors", "design.toml"

#: Number of training images for int8 ranges.
RANGES = 64


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
    manifest: "Manifest | None"  # Of the bundle.


def extract(
    folder: Path, out: Path, *, design: Path | None = None, bundle: bool = True, controls: bool = True, trust_code: bool = False
) -> Extracted:
    """Extract a design from a run, evaluate it, and write its weights and a bundle.

    Args:
        out: Folder for ``model.safetensors``, ``design.toml`` and ``bundle``.
        design: A design file in the supernet's pool or within its range; None for that of the run.
    """
    run = open_run(folder, trust_code=trust_code)
    ready, weights = run.ready, run.weights
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
        _copy_statistics(model, subnet.model)
        inside = evaluate(subnet.model, test_set, normalise, plain)
        extracted = evaluate(model, test_set, normalise, plain)
    write_tensors(out / WEIGHTS, model.state_dict())
    write_text(out / DESIGN, design_to_toml(wanted))
    images = Images(*(_some(source, count, normalise) for source, count in ((train_set, RANGES), (test_set, HELD_BACK))))
    compared, _ = compare_on(model, ready.captured, images.held_back)
    agreement = compared.agreement if compared else None
    manifest = None
    if bundle:
        manifest = _bundle(ready, wanted, model, out / "bundle", folder, controls, preprocessing(train_set), images, agreement, ranges)
        agreement = manifest.agreement
    target = out / "bundle" if bundle else None
    return Extracted(model, wanted, out / WEIGHTS, target, inside, extracted, labelled, agreement, manifest)


def _some(source: ImageSource, count: int, normalise: Normalise) -> list[torch.Tensor]:
    """Batches of some images of a set, preprocessed without randomness."""
    return [normalise(images.cpu()) for images, _ in source.some(count).batches(BATCH)]


def _copy_statistics(source: BranchedModel, target: BranchedModel) -> None:
    """Copy batch-norm statistics between networks of the same design."""
    buffers = dict(target.named_buffers())
    for name, value in source.named_buffers():
        buffers[name].copy_(value)


def _bundle(
    ready: Prepared,
    design: BranchDesign,
    model: BranchedModel,
    out: Path,
    folder: Path,
    controls: bool,
    read: Preprocessing,
    images: Images,
    agreement: Agreement | None,
    ranges: Ranges,
) -> "Manifest":
    plan = ready.recipe.plan
    if ready.recipe.rounding is not None:
        plan = msgspec.structs.replace(plan, precision=ready.precision)
    with errors_spelled(as_key):
        planned = evaluate_plan(ready.captured.graph, ready.profile, design, plan)
    networks = (model, build_control(ready.captured, planned) if controls else None)

    def agreeing(files: Bundle) -> Agreement | None:
        return None if agreement is None else msgspec.structs.replace(agreement, bundle=run_on(files, ready.captured, images)[0])

    weights = ("file", f"trained by nn-stretch, run {folder.name}")
    return write_bundle(out, planned, ready.captured, networks, weights, read, controls=controls, agreeing=agreeing, ranges=ranges)
