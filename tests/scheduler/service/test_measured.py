import pytest

from scheduler import Session
from scheduler.delegates import NullDelegate
from scheduler.service.service import measured_network
from scheduler.simulate.clock import Clock
from scheduler.simulate.scene import Scene


def test_what_subgraphs_take_is_measured_by_queue(bundle_dir):
    null = NullDelegate({"head": 0.03})
    with Session(bundle_dir, {"cpu": "null", "gpu": "null"}, delegates={"null": null}) as session:
        found = measured_network("n", session)
    assert found.times["head"].processor == "null:cpu"
    ((doing, ms),) = found.times["head"].parts
    assert (doing, ms >= 30) == ("subgraph", True)
    assert set(found.times) == set(session.plan.order)
    (took,) = Clock(found, Scene()).run().latencies_ms
    assert took >= ms


def test_session_that_is_closed_cannot_be_measured(bundle_dir):
    from predictors.errors import StretchError

    with Session(bundle_dir) as session:
        pass
    with pytest.raises(StretchError, match="closed"):
        measured_network("n", session)
