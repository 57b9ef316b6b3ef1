"""Reading of hand-written designs."""

from pathlib import Path

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from stretch.planning.design.branch_design import BranchDesign, DesignDraft, load_draft
from stretch.planning.design.scale import aligns, resolve_design


def read_design(design: Path | DesignDraft, graph: OpGraph, profile: DeviceProfile) -> BranchDesign:
    """Return a hand-written design, completed for a network on a device."""
    draft = load_draft(design) if isinstance(design, Path) else design
    align = aligns(profile, (*profile.processors, *profile.variants))
    return resolve_design(draft, graph, profile.id, align, next(iter(profile.processors)))
