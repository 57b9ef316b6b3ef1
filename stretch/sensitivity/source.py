"""From a network, a request and images to what planning for agreement is done with."""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import prod

import torch
from msgspec.structs import replace

from predictors.devices import DeviceProfile
from predictors.errors import UsageError
from scheduler.progress import Progress, silent
from stretch import __version__
from stretch.capture import Captured
from stretch.planning.choose import stretched_space
from stretch.planning.config import PlanConfig
from stretch.planning.cost.sensitivity import MeasuredOn, Sensitivity
from stretch.planning.cost.sensitivity_fit import fit
from stretch.planning.plan import Asked
from stretch.sensitivity.measure import measure
from stretch.transform.calibrate import MIN_IMAGES

#: Images that segments are calibrated on and compared on, at most: every way of every segment looks at all of them.
FITTED, HELD_BACK = 96, 128
#: Bytes that all images may take at the ends of the stages.
MOST_BYTES = 1 << 30
#: Seconds of measuring, where nothing is said.
BUDGET_S = 300.0


def plannable(config: PlanConfig) -> bool:
    """Whether designs for a request can be chosen by what they lose: by the exact search, among scaled copies that keep the trunk's width."""
    return config.strategy == "exact" and not config.widens and "stretch" in config.planned_kinds


def sensitivity_of(
    captured: Captured,
    device: DeviceProfile,
    config: PlanConfig,
    fitted: Sequence[torch.Tensor],
    held_back: Sequence[torch.Tensor],
    budget_s: float = BUDGET_S,
    progress: Progress = silent,
) -> Sensitivity:
    """Measure what a network loses where single segments are replaced, and fit a predictor to it.

    A share of the images is looked at (`FITTED`, `HELD_BACK`, less where they would take much memory), spread over all.

    Args:
        config: The request: processors, rules and join of the designs that are to be chosen from.
        fitted: Batches of unlabelled images to calibrate with, (n, channels, height, width).
        budget_s: Seconds of measuring; what has begun is finished.
        progress: Called with a few words for what comes next.
    """
    if len(captured.graph.inputs) > 1 or len(captured.graph.outputs) > 1:
        raise UsageError(
            f"agreement is planned for networks of one input and one output, and `{captured.graph.name}` has several",
            "leave the images out to search, or calibrate a design without asking for an agreement",
        )
    request = Asked.of(captured.graph, device, replace(config, min_agreement=None, min_accuracy=None, accuracy="", objective="latency"))
    checked = request.config
    space = stretched_space(captured.graph, checked, request.costs, request.stages, merged=checked.merge != "never" and not checked.meet)
    image_bytes = 4 * sum(prod(captured.graph.by_name[stage.start].shape) for stage in request.stages)
    most = max(MIN_IMAGES, MOST_BYTES // image_bytes // 2)
    ours, theirs = _some(fitted, min(FITTED, most)), _some(held_back, min(HELD_BACK, most))
    measurement = measure(captured, space, ours, theirs, budget_s, progress=progress)
    on = MeasuredOn(
        weights=_digest(tensor for _, weights in sorted(captured.weights.items()) for _, tensor in sorted(weights.items())),
        images=sum(map(len, ours)),
        held_back=sum(map(len, theirs)),
        pictures=_digest([*ours, *theirs]),
        device=device.id,
        processors=checked.processors,
        version=__version__,
        date=datetime.now(tz=UTC).isoformat(timespec="seconds"),
        seconds=round(measurement.seconds, 1),
        complete=measurement.complete,
    )
    return fit(captured.graph.name, checked.meets_by, request.stages, measurement.alone, measurement.designs, on)


def _some(batches: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
    """So many images at most, spread over all, in batches as large as before."""
    together = torch.cat(list(batches))
    size = len(batches[0])
    if len(together) <= count:
        return list(together.split(size))
    return list(together[torch.arange(count, device=together.device) * len(together) // count].split(size))


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    """SHA-256 of numbers in their order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
