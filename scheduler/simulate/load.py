"""Background load: what else takes a share of a processor, and when."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from predictors.errors import UnknownNameError, UsageError

#: Moments of loads are at most this, ms: about twelve days.
LAST_MS = 1e9

#: Sums of shares may be over 1 by this, for 0.9 and 0.1 are not exactly 1.
_ROUNDING = 1e-9

_EXAMPLE = "write a share of a processor and the milliseconds between which it is taken, as gpu=0.9@50:155"

_FORM = re.compile(r"(?P<processor>[^=]+)=(?P<share>[^@=]+)@(?P<start>[^:@]+):(?P<end>[^:@]+)")


@dataclass(frozen=True)
class Load:
    """A share of a processor that is taken for a while.

    Args:
        processor: Processor of the device.
        share: What is taken, from 0 to 1.
        start_ms: From when on.
        end_ms: Until when.

    Raises:
        UsageError: If a number is none of these.
    """

    processor: str
    share: float
    start_ms: float
    end_ms: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.share <= 1:
            raise UsageError(f"the load on {self.processor} takes {self.share:g} of it, which is no share", "a share is from 0 to 1")
        for moment in (self.start_ms, self.end_ms):
            if not (isfinite(moment) and 0 <= moment <= LAST_MS):
                raise UsageError(f"the load on {self.processor} has {moment:g} ms for a moment", f"moments are from 0 to {LAST_MS:g} ms")
        if self.end_ms <= self.start_ms:
            raise UsageError(f"the load on {self.processor} ends at {self.end_ms:g} ms, and begins at {self.start_ms:g} ms", _EXAMPLE)


def parse_loads(texts: Iterable[str]) -> tuple[Load, ...]:
    """Loads as they are written on the command line, such as ``gpu=0.9@50:155``, several separated by commas.

    Raises:
        UsageError: If one is not written so, or its numbers make no sense.
    """
    words = [word.strip() for text in texts for word in text.split(",")]
    return tuple(_parsed(word) for word in words)


def _parsed(word: str) -> Load:
    form = _FORM.fullmatch(word)
    if form is None:
        raise UsageError(f"`{word}` is no load", _EXAMPLE)
    try:
        share, start, end = (float(form[name]) for name in ("share", "start", "end"))
    except ValueError:
        raise UsageError(f"`{word}` has something in the place of a number", _EXAMPLE) from None
    return Load(form["processor"].strip(), share, start, end)


class Free:
    """What loads leave of each processor as time goes on.

    Args:
        loads: Any number, of one processor too.
        processors: Those there are.

    Raises:
        UnknownNameError: If a load is on another processor.
        UsageError: If loads take more than all of a processor at once.
    """

    def __init__(self, loads: Sequence[Load], processors: Collection[str]) -> None:
        for load in loads:
            if load.processor not in processors:
                raise UnknownNameError.among("processor of the bundle", load.processor, processors)
        taking = [load for load in loads if load.share]
        moments = sorted({moment for load in taking for moment in (load.start_ms, load.end_ms)})
        self._changes: list[tuple[float, dict[str, float]]] = []
        for moment in moments:
            left = dict.fromkeys(processors, 1.0)
            for load in taking:
                if load.start_ms <= moment < load.end_ms:
                    left[load.processor] -= load.share
            for processor, share in left.items():
                if share < -_ROUNDING:
                    raise UsageError(f"loads take {1 - share:g} of {processor} from {moment:g} ms on", "together they may take 1 of it")
            self._changes.append((moment, {processor: share if share > _ROUNDING else 0.0 for processor, share in left.items()}))
        self._next = 0
        #: Share of each processor that is free now.
        self.shares = dict.fromkeys(processors, 1.0)
        #: When that changes next, ms; infinite if it does not.
        self.until = moments[0] if moments else inf

    def change(self) -> None:
        """Go on to the moment `until`."""
        self.shares = self._changes[self._next][1]
        self._next += 1
        self.until = self._changes[self._next][0] if self._next < len(self._changes) else inf
