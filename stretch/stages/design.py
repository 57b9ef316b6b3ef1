"""Second stage: the design, searched for or read."""

from pathlib import Path

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.design.branch_design import BranchDesign, DesignDraft, load_draft
from stretch.planning.design.resolve import resolve_design
from stretch.planning.design.scale import aligns
from stretch.planning.plan import evaluate, plan
from stretch.planning.result import PlanResult


def read_design(design: Path | DesignDraft, graph: OpGraph, profile: DeviceProfile) -> BranchDesign:
    """A design as a person writes it, completed for a network on a device.

    Args:
        profile: Of the device; its first processor runs what the design does not mention.
    """
    draft = load_draft(design) if isinstance(design, Path) else design
    align = aligns(profile, (*profile.processors, *profile.variants))
    return resolve_design(draft, graph, profile.id, align, next(iter(profile.processors)))


def decide_design(
    graph: OpGraph,
    profile: DeviceProfile,
    config: PlanConfig | None = None,
    design: Path | DesignDraft | None = None,
    accuracy_source: AccuracySource | None = None,
) -> PlanResult:
    """The design to build, with its prediction and what it is compared with.

    Args:
        config: Constraints of the search; with a design, precisions and floors of the controls.
        accuracy_source: What predicts the accuracy of designs; the file that `config` names if None.
    """
    if design is None:
        return plan(graph, profile, config, accuracy_source)
    return evaluate(graph, profile, read_design(design, graph, profile), config, accuracy_source)
