"""Whoever writes a bundle, it says all that the plan knows."""

import pytest

torch = pytest.importorskip("torch")

from scheduler.placement.priority import choose_processors  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.stages.build import build_control  # noqa: E402
from stretch.stages.bundle import write_bundle  # noqa: E402
from stretch.stages.design import decide_design  # noqa: E402
from stretch.stages.network import read_network  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_bundle_runs_and_can_be_placed_by_priority(tmp_path):
    network = read_network("tiny_resnet", weights="none")
    planned = decide_design(network.graph, specified("pixel6"), PlanConfig(alpha=1000.0, beta=1000.0, macs=(0.7, 1.4)))
    networks = (build(network.captured, planned.design), build_control(network.captured, planned))
    told = []
    manifest = write_bundle(tmp_path / "b", planned, network.captured, networks, ("random", "why"), None, progress=told.append)
    assert (manifest.weights.source, manifest.device) == ("random", "pixel6")
    assert manifest.little_cores == planned.device.little_cores.value
    assert all(set(entry.alternatives) == set(planned.config.processors) for entry in manifest.subgraphs)
    choose_processors(manifest, priority="energy")
    assert told
    assert all(words.startswith("export ") for words in told)
    x = torch.randn(network.graph.input.shape)
    with torch.no_grad():
        want = networks[0].eval()(x).numpy()
    with Session(tmp_path / "b") as session:
        assert abs(session.run(x.numpy()) - want).max() <= 1e-4 * abs(want).max()
