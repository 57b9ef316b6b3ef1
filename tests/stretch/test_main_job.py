"""Branching of full-size networks, one per family, on two and three processors; `experiments.main_job` checks more."""

import numpy as np
import pytest
import torch

from scheduler.runtime.session import Session
from stretch.api import branch
from stretch.network.capture import capture
from stretch.planning.config import PlanConfig
from stretch.planning.design.scale import scaled_graph
from tests.predictors.specified import kept

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "device", "processors"),
    [
        ("resnet18", "pixel6", ("cpu", "gpu")),
        ("resnet50", "mi9", ("cpu", "gpu", "dsp")),
        ("regnet_x_400mf", "mi9", ("cpu", "gpu", "dsp")),
        ("efficientnet_b0", "pixel6", ("cpu", "gpu")),
        ("mobilenet_v2", "mi9", ("cpu", "gpu", "dsp")),
        ("mobilenet_v3_large", "pixel6", ("cpu", "gpu")),
    ],
)
def test_bundle_run_by_the_scheduler_agrees_with_the_branched_module(tmp_path, model, device, processors):
    result = branch(model, kept(device), out=tmp_path / "b", config=PlanConfig(processors=processors), weights="none")
    assert 0.97 <= result.plan.macs_ratio <= 1.03
    assert result.plan.design.n_meet >= 1
    x = torch.randn(result.plan.graph.input.shape, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        want = result.model(x).numpy()
    with Session(tmp_path / "b") as session:
        got = session(x.numpy())
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    traced = capture(result.model, result.plan.graph.input.shape, result.plan.graph.name)
    assert traced.graph == scaled_graph(result.plan.graph, result.plan.design)
