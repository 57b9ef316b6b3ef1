"""From images to what planning for agreement is done with."""

import pytest

torch = pytest.importorskip("torch")

from stretch.planning.config import PlanConfig  # noqa: E402 - torch may be missing
from stretch.planning.cost.accuracy_file import load_accuracy, save_accuracy  # noqa: E402
from stretch.planning.plan import plan  # noqa: E402
from stretch.sensitivity import source  # noqa: E402
from stretch.sensitivity.source import plannable, sensitivity_of  # noqa: E402
from stretch.stages.network import read_network  # noqa: E402
from tests.predictors.specified import specified  # noqa: E402
from tests.stretch.sensitivity.test_measure import images  # noqa: E402

pytestmark = pytest.mark.torch

LOOSE = {"processors": ("cpu", "gpu"), "alpha": 1e3, "beta": 1e3, "balance": 0.01, "macs": (0.8, 1.2)}


@pytest.mark.parametrize(
    ("request_", "can"),
    [({}, True), ({"lossless": True}, False), ({"join": "concat"}, False), ({"strategy": "grid"}, False), ({"kinds": ("rows",)}, False)],
)
def test_only_stretched_designs_of_the_exact_search_are_chosen_by_what_they_lose(request_, can):
    assert plannable(PlanConfig(**request_)) == can


def test_measured_sensitivity_says_what_it_was_measured_on_and_a_planner_plans_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "FITTED", 16)
    monkeypatch.setattr(source, "HELD_BACK", 8)
    network = read_network("tiny_resnet", weights="none")
    found = sensitivity_of(network.captured, specified("pixel6"), PlanConfig(**LOOSE), images(20, 0), images(12, 1), 0.0)
    assert (found.model, found.join) == ("tiny_resnet", "project")
    assert (found.on.images, found.on.held_back, found.on.device) == (16, 8, specified("pixel6").id)
    assert not found.on.complete
    assert len(found.on.weights) == len(found.on.pictures) == 64
    save_accuracy(tmp_path / "sensitivity.json", found)
    assert load_accuracy(tmp_path / "sensitivity.json", "tiny_resnet") == found
    planned = plan(network.graph, specified("pixel6"), PlanConfig(**LOOSE), found)
    assert planned.accuracy == found.answer(network.graph, planned.design)
