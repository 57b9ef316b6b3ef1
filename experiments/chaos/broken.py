"""A delegate that computes as another one does, and at random fails as delegates do."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from scheduler.delegates.base import Array, AsyncInvocation, Compiled, Delegate, Invocation, UnableError, get_delegate
from scheduler.delegates.process import ProcessDelegate

#: Seconds of a stall, which is no fault: only slow.
STALL_S = 0.01


class Chaos:
    """Decides what goes wrong, by a seed.

    Args:
        seed: Of the draws.
        rates: Share of runs by what goes wrong: ``raise``, ``lost``, ``nan``, ``wrong``, ``stall``, ``hang`` or ``kill``.
    """

    def __init__(self, seed: int, rates: Mapping[str, float]) -> None:
        self._random, self._rates = random.Random(seed), dict(rates)
        self._lock = threading.Lock()
        #: What went wrong how often.
        self.happened: Counter[str] = Counter()
        #: Ends what hangs.
        self.over = threading.Event()

    def draw(self) -> str | None:
        """What goes wrong in this run, if anything."""
        with self._lock:
            left = self._random.random()
            for what, rate in self._rates.items():
                left -= rate
                if left < 0:
                    self.happened[what] += 1
                    return what
        return None


class BrokenDelegate(Delegate):
    """Wraps another delegate.

    Args:
        inner: The other one.
        chaos: What goes wrong.
    """

    def __init__(self, inner: Delegate, chaos: Chaos) -> None:
        self._inner, self.chaos = inner, chaos
        self.reentrant = False

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """Only `broken` makes one."""
        raise NotImplementedError

    def compile(self, model: Path) -> Compiled:
        """As the other compiles it."""
        return _Compiled(self._inner.compile(model), self)

    def abort(self, why: str) -> bool:
        """As the other does."""
        return self._inner.abort(why)

    @property
    def restarting(self) -> bool:
        """As the other does."""
        return self._inner.restarting

    def close(self) -> None:
        """End the other."""
        self._inner.close()

    def before(self, what: str | None) -> None:
        """What goes wrong before a run."""
        if what == "raise":
            raise RuntimeError("it broke")
        if what == "lost":
            raise UnableError("the device is lost")
        if what == "stall":
            time.sleep(STALL_S)
        if what == "hang":
            self.chaos.over.wait()
        if what == "kill" and isinstance(self._inner, ProcessDelegate):
            os.kill(self._inner.pid, signal.SIGKILL)


class _Compiled(Compiled):
    def __init__(self, inner: Compiled, delegate: BrokenDelegate) -> None:
        super().__init__(inner.inputs, inner.outputs)
        self._inner, self._delegate = inner, delegate

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Invocation:
        bound = self._inner.bind(inputs, outputs)
        return (_Later if isinstance(bound, AsyncInvocation) else _Now)(bound, outputs, self._delegate)


class _Now(Invocation):
    def __init__(self, inner: Invocation, outputs: Sequence[Array], delegate: BrokenDelegate) -> None:
        self._inner, self._outputs, self._delegate = inner, outputs, delegate

    def run(self) -> None:
        what = self._delegate.chaos.draw()
        self._delegate.before(what)
        self._inner.run()
        _spoil(self._outputs, what)


class _Later(AsyncInvocation):
    def __init__(self, inner: Invocation, outputs: Sequence[Array], delegate: BrokenDelegate) -> None:
        assert isinstance(inner, AsyncInvocation)
        self._inner, self._outputs, self._delegate = inner, outputs, delegate
        self._what: str | None = None

    def enqueue(self) -> None:
        self._what = self._delegate.chaos.draw()
        self._delegate.before(self._what)
        self._inner.enqueue()

    def wait(self) -> None:
        self._inner.wait()
        what, self._what = self._what, None
        _spoil(self._outputs, what)


def _spoil(outputs: Sequence[Array], what: str | None) -> None:
    if what == "nan":
        outputs[0].flat[0] = np.nan
    if what == "wrong":
        outputs[0] *= 3


def broken(inner: str, cores: tuple[int, ...], chaos: Chaos) -> BrokenDelegate:
    """A delegate that is broken, as fit for a session as the other one.

    Args:
        inner: Name of the other.
        cores: It uses.
        chaos: What goes wrong.
    """
    kind = get_delegate(inner)
    return type("Broken", (BrokenDelegate,), {"asynchronous": kind.asynchronous, "precisions": kind.precisions, "computes": kind.computes})(
        kind.create(cores), chaos
    )
