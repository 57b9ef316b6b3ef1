"""Energy of a run from a profile's power figures, by the state of each processor (paper 003, section 7.3, figure 10)."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from predictors.devices import DeviceProfile, NotNegative, Positive

#: A processor's state: it computes, waits for others between its parts of a run, or has no work in the run.
State = Literal["busy", "waiting", "idle"]


class EnergyPart(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of one processor in one state; a row of `predicted.energy` in the JSON of the command line."""

    processor: str  # Name, with or without core set; for a processor without work, its family.
    state: State  # One of `State`.
    ms: float  # Time in the state.
    power_w: float | None  # Power in the state, W; None if the profile states none.
    mj: float | None  # Energy, mJ; None if the profile states no power.
    source: str | None  # Source of the power in the profile.


class EnergyModel:
    """Energy on the processors of one device.

    Args:
        device: The device's profile.
    """

    def __init__(self, device: DeviceProfile) -> None:
        self._device = device

    def mj(self, processor: str, ms: float) -> float | None:
        """Return the energy in mJ of a processor that computes for `ms`; None if its profile states no power.

        The power of the rest of the device is not counted.

        Args:
            processor: Name, with or without core set.
        """
        power = self._device.processor(processor).cores.power_w
        return None if power is None else power.value * ms

    def plan_mj(self, busy: Mapping[str, float], makespan_ms: float) -> float | None:
        """Return the energy of a run on several processors, mJ: of each while it computes, and of its waiting and idling if known.

        Args:
            busy: Computing time of each processor by name, ms.
        """
        parts = self.parts(busy, makespan_ms)
        if any(part.mj is None for part in parts if part.state == "busy"):
            return None
        return sum(part.mj for part in parts if part.mj is not None)

    def parts(self, busy: Mapping[str, float], makespan_ms: float) -> tuple[EnergyPart, ...]:
        """Return the parts of a run's energy: every processor of the device in each of its states.

        Args:
            busy: As for `plan_mj`.
        """
        return tuple(self._parts(busy, makespan_ms))

    def _parts(self, busy: Mapping[str, float], makespan_ms: float) -> Iterator[EnergyPart]:
        working = set()
        for name, ms in busy.items():
            processor = self._device.processor(name)
            working.add(processor.family)
            profile = processor.profile
            yield self._part(name, "busy", ms, processor.cores.power_w)
            # transfers and joins of others may overlap with computing, so that the sum may exceed the makespan
            if makespan_ms > ms:
                yield self._part(name, "waiting", makespan_ms - ms, profile.idle_w if profile.waiting_w is None else profile.waiting_w)
        for family, profile in self._device.processors.items():
            if family not in working:
                yield self._part(family, "idle", makespan_ms, profile.idle_w)

    def _part(self, processor: str, state: State, ms: float, power: Positive | NotNegative | None) -> EnergyPart:
        return EnergyPart(
            processor=processor,
            state=state,
            ms=ms,
            power_w=None if power is None else power.value,
            mj=None if power is None else power.value * ms,
            source=None if power is None else self._device.sources.get(power.source),
        )
