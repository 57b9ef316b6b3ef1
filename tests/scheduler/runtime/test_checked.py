import numpy as np
import pytest

from scheduler.delegates.base import AsyncInvocation, Invocation, UnableError
from scheduler.faults.policy import FaultPolicy
from scheduler.runtime.driver import Check, checked
from scheduler.runtime.distance import TOLERANCE

WANT = np.arange(6, dtype=np.float32)


class Writes(Invocation):
    """Writes given numbers into an array, run by run."""

    def __init__(self, array, *values):
        self.array, self.values = array, list(values)

    def run(self):
        self.array[:] = self.values.pop(0)


class WritesLater(Writes, AsyncInvocation):
    def enqueue(self):
        pass

    def wait(self):
        Writes.run(self)

    def times(self):
        return (1, 2)


def made(kind, values, policy, other=lambda: ("cpu", [WANT]), precision="fp32"):
    array = np.zeros(6, np.float32)
    return checked(kind(array, *values), Check([array], other, precision, [TOLERANCE[precision]], policy))


@pytest.mark.parametrize("kind", [Writes, WritesLater])
def test_nan_where_another_delegate_has_numbers_is_found(kind):
    nan = WANT.copy()
    nan[2] = np.nan
    call = made(kind, [WANT, nan], FaultPolicy())
    call.run()
    with pytest.raises(UnableError, match="NaN or infinity where the delegate `cpu` gives numbers"):
        call.run()


@pytest.mark.parametrize("kind", [Writes, WritesLater])
def test_wrong_numbers_are_found_in_the_runs_that_are_looked_at(kind):
    call = made(kind, [WANT * 2] * 3, FaultPolicy(spot_every=3))
    call.run()
    call.run()
    with pytest.raises(UnableError, match=r"off by 1 from that of the delegate `cpu`, 0\.001 is allowed in fp32"):
        call.run()


def test_what_rounding_explains_is_right():
    made(Writes, [WANT * 1.2], FaultPolicy(spot_every=1), precision="int8").run()


@pytest.mark.parametrize("other", [lambda: None, lambda: ("cpu", [WANT * np.inf])], ids=["no other", "none there either"])
def test_nothing_is_said_where_there_is_nothing_to_compare_with(other):
    with np.errstate(all="ignore"):
        made(Writes, [WANT * np.inf], FaultPolicy(spot_every=1), other).run()


def test_asynchronous_calls_stay_so_and_tell_their_times():
    call = made(WritesLater, [WANT], FaultPolicy())
    assert isinstance(call, AsyncInvocation)
    assert call.times() == (1, 2)
    assert call.conversions() == ()
