"""A bundle's run on its device as the plan predicts it."""

from predictors.devices import DeviceProfile
from scheduler.bundle.manifest import Manifest
from scheduler.runtime.plan import make_plan
from scheduler.runtime.trace import Trace
from scheduler.simulate.clock import Clock
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import Scene
from scheduler.simulate.times import device_placements, step_times


def predicted_trace(manifest: Manifest, device: DeviceProfile) -> Trace | None:
    """The run that the planner expects, transfers as spans of their own (`scheduler.simulate.times.step_times`).

    Args:
        manifest: A bundle's description.

    Returns:
        The trace, its clock starting at zero; None if a subgraph has no predicted time.
    """
    if any(entry.predicted_ms is None for entry in manifest.subgraphs):
        return None
    network = Network(manifest.model.name, make_plan(manifest), device_placements(manifest, device), step_times(manifest, device))
    return Clock(network, Scene(traced=1)).run().traces[0]
