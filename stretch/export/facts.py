"""A bundle's metadata of a plan, for everything that writes bundles."""

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from scheduler.bundle.manifest import Alternative
from scheduler.bundle.preprocessing import Preprocessing
from stretch.export.bundle import BundleFacts
from stretch.planning.config import PlanConfig
from stretch.planning.result import PlanResult


def bundle_facts(
    planned: PlanResult, profile: DeviceProfile, weights_source: str, weights_detail: str, preprocessing: Preprocessing | None = None
) -> BundleFacts:
    """The facts of a planned design.

    Args:
        weights_source: ``default``, ``random``, ``file``, ``given`` or ``trained``.
    """
    return BundleFacts(
        profile.id,
        planned.calibrated,
        weights_source,
        weights_detail,
        planned.predicted.to_json(),
        planned.recommended,
        {
            f"{row.design.name}.{name}": (b.ms, b.estimate.contention if len(row.branches) > 1 else 1.0)
            for row in planned.run.segments
            for name, b in zip(row.design.names, row.branches, strict=True)
        }
        | {f"{side.name}.{side.time.scale.processor}": (side.time.ms, 1.0) for side in planned.run.sides},
        planned.config.precision,
        lambda piece: _alternatives(piece, profile, planned.config),
        profile.little_cores.value if profile.little_cores else (),
        preprocessing,
    )


def _alternatives(graph: OpGraph, device: DeviceProfile, config: PlanConfig) -> dict[str, Alternative]:
    """Predicted time and energy of a subgraph on each processor that the plan may use."""
    predictor, energy = LatencyPredictor(device), EnergyModel(device)
    alternatives = {}
    for name in config.processors:
        ms = predictor.predict(graph, name, config.precision.get(name)).computing_ms
        alternatives[name] = Alternative(ms, energy.mj(name, ms))
    return alternatives
