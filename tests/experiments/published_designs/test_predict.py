"""A prediction of a published design is the planner's for its design file; errors are counted as they are."""

import pytest

pytest.importorskip("torch")

from experiments.published_designs import predict as module
from experiments.published_designs.designs_file import PublishedDesign
from experiments.published_designs.predict import Basis, alone_rows, errors, predict
from experiments.published_designs.tables import StageTable
from tests.predictors.networks import resnet50

HALF = {"cpu": StageTable((3, 4, 6, 3), (128, 256, 512, 1024)), "gpu": StageTable((2, 2, 4, 2), (192, 384, 768, 1536))}


@pytest.fixture(autouse=True)
def captured(monkeypatch):
    """The network as it is captured, without torch's weights."""
    module._network.cache_clear()
    monkeypatch.setattr(module, "graph_of", lambda model: resnet50())
    yield
    module._network.cache_clear()


def design(branches=HALF, ms=None, alone=None):
    return PublishedDesign("d", "resnet50", "mi9", branches, None, None, (), {}, ms, alone or {}, None, "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["0.1.0"])
def test_processors_as_fast_as_predicted_give_the_prediction(basis):
    made = predict(design(), Basis(basis))
    own = {name: made.alone_ms(name) for name in HALF}
    again = predict(design(alone=own), Basis(basis))
    assert again.anchored_ms() == pytest.approx(made.result.run.makespan_ms, rel=1e-6)


def test_network_as_it_is_has_its_times_alone():
    made = predict(design(branches={}, alone={"dsp": 30.0}), Basis("0.1.0"))
    assert made.result is None
    (row,) = alone_rows([made, made])
    assert row["error %"] == pytest.approx(100 * (made.alone_ms("dsp") / 30 - 1), abs=0.06)


def test_errors_are_counted_by_their_size():
    rows = [{"error %": each, "in the interval": inside} for each, inside in ((-5.0, True), (15.0, True), (-40.0, False))]
    told = errors(rows, "p", "designs", "error %")
    assert (told["number"], told["mean error %"], told["within ±10 %"], told["within ±20 %"], told["in the 90 % interval"]) == (
        3,
        20.0,
        1,
        2,
        2,
    )
    assert told["predicted ÷ measured, median"] == 0.95
    assert errors([{"error %": None}], "p", "designs", "error %") is None
