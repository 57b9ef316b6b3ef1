import numpy as np

from scheduler.delegates.base import AsyncInvocation, Invocation
from scheduler.runtime.buffers import with_rows


class Doubled(Invocation):
    """Writes twice what it reads."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def run(self):
        self.y[...] = 2 * self.x

    def conversions(self):
        return (("to NHWC", 1, 2),)


class DoubledLater(AsyncInvocation):
    """The same, begun with `enqueue`."""

    def __init__(self, x, y):
        self.x, self.y, self.read = x, y, None

    def enqueue(self):
        self.read = self.x.copy()

    def wait(self):
        self.y[...] = 2 * self.read

    def times(self):
        return 5, 9


def image():
    x = np.arange(24.0).reshape(1, 3, 4, 2)
    return x, np.zeros((1, 3, 2, 2)), np.zeros((1, 3, 2, 2))


def test_rows_are_copied_before_every_run_and_told_as_a_conversion():
    x, own, y = image()
    call = with_rows(Doubled(own, y), [(own, x[:, :, 1:3])])
    for _ in range(2):
        call.run()
        assert np.array_equal(y, 2 * x[:, :, 1:3])
        x += 1
    (rows, start, end), inner = call.conversions()
    assert (rows, inner) == ("rows", ("to NHWC", 1, 2))
    assert 0 < start <= end


def test_what_is_enqueued_reads_rows_as_they_were_then():
    x, own, y = image()
    call = with_rows(DoubledLater(own, y), [(own, x[:, :, 1:3])])
    assert isinstance(call, AsyncInvocation)
    before = x[:, :, 1:3].copy()
    call.enqueue()
    x += 1
    call.wait()
    assert np.array_equal(y, 2 * before)
    assert call.times() == (call.conversions()[0][1], 9)


def test_nothing_to_copy_leaves_the_invocation_as_it_is():
    _, own, y = image()
    call = Doubled(own, y)
    assert with_rows(call, []) is call
