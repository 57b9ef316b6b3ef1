"""One processor is far ahead where even a division without loss, with one exchange, takes longer than it does alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.simulated_speedup.devices import with_speed
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.ahead import _divided_ms, ahead
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

WORK = st.floats(0.1, 100)


@given(st.lists(st.tuples(WORK, st.floats(0, 10)), min_size=1, max_size=4))
def test_divided_time_is_when_shares_add_up_to_the_whole(processors):
    times = {str(i): ms for i, (ms, _) in enumerate(processors)}
    exchange = {str(i): ms for i, (_, ms) in enumerate(processors)}
    found = _divided_ms(times, exchange)
    done = sum(max(0.0, found - exchange[name]) / ms for name, ms in times.items())
    assert done == pytest.approx(1.0)
    assert found <= min(times[name] + exchange[name] for name in times) * (1 + 1e-9)


def of(device, best, processors=("cpu", "gpu", "dsp")):
    """How far a processor is ahead on a device, of a small network at large."""
    precision = {name: device.processor(name).default_precision for name in processors}
    return ahead(small_resnet(64), LatencyPredictor(device), precision, (best, precision[best]))


def test_a_lead_that_the_intervals_could_undo_is_not_far():
    device = with_speed(specified("mi9"), "dsp", 0.01)
    found = of(device, "gpu", ("gpu", "dsp"))
    assert found.margin == pytest.approx(1.4**2)  # both ends of 40 %
    closer = of(with_speed(device, "dsp", found.crossover / 1.5), "gpu", ("gpu", "dsp"))
    assert closer.crossover == pytest.approx(1.5)
    assert closer.divided_ms > closer.alone_ms
    assert not closer.far


def test_where_others_help_already_there_is_no_crossover():
    device = specified("mi9")
    free = replace(device, links={name: _free(link) for name, link in device.links.items()})
    found = of(free, "dsp")
    assert not found.far
    assert found.crossover is None
    assert found.handover_ms == 0.0


def _free(link):
    from msgspec.structs import replace as changed

    return changed(link, **{part: changed(getattr(link, part), value=0.0) for part in ("map_ms", "unmap_ms", "sync_ms")})
