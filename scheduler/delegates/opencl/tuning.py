"""A subgraph's kernels before and after they are tuned, for `stretch tune`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from scheduler.delegates.base import TunedKernel, Tuning
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.tuner import Tuned, tuned_key
from scheduler.delegates.opencl.workgroups import CONVOLUTIONS, Mode, TunedGroup
from scheduler.progress import Progress, silent

#: Turns in which a subgraph is measured before and after tuning.
TURNS = 7


class Tuner(Protocol):
    """What the delegate does for tuning."""

    @property
    def item_bytes(self) -> int:
        """Bytes of an element as tensors are stored."""
        ...

    def build(self, model: Path) -> OpenCLCompiled:
        """The kernels of a subgraph as they are now."""
        ...

    def tune(self, model: Path, budget_s: float, progress: Progress = silent) -> list[Tuned]:
        """Schedules of convolutions, kept."""
        ...

    def tune_groups(self, model: Path, mode: Mode, budget_s: float, progress: Progress = silent) -> list[TunedGroup]:
        """Work-groups of launches, kept."""
        ...


class OpenCLTuning(Tuning):
    """One subgraph in the precision that it runs in.

    Args:
        delegate: Of that precision.
        model: The subgraph's ONNX file.
        name: The subgraph.
        mode: ``fast`` or ``exhaustive`` for work-groups, None for the schedules of convolutions.
    """

    def __init__(self, delegate: Tuner, model: Path, name: str, mode: Mode | None) -> None:
        self._delegate = delegate
        self._model = model
        self._name = name
        self._mode = mode
        self._before = delegate.build(model)
        device = self._before.device
        super().__init__(f"{device.name}, {device.driver}", self._steps())

    def _steps(self) -> int:
        """Launches, or convolutions where their schedules are tuned."""
        launches = self._before.launches
        if self._mode is not None:
            return len(launches)
        return len({launch.node for launch in launches if launch.kernel in CONVOLUTIONS})

    def tune(self, budget_s: float, progress: Progress) -> dict[tuple[str, str], Any]:
        """Tune schedules or work-groups; what was found until an interruption is kept."""
        if self._mode is None:
            return {(tuned.kernel, tuned.shape): dict(tuned.choice) for tuned in self._delegate.tune(self._model, budget_s, progress)}
        groups = self._delegate.tune_groups(self._model, self._mode, budget_s, progress)
        return {
            (group.launch.kernel, group.launch.shape): None if group.local is None else {"local": list(group.local)} for group in groups
        }

    def rows(self, choices: Mapping[tuple[str, str], Any]) -> list[TunedKernel]:
        """Each launch, measured before and after in turns."""
        times = measure_in_turns(self._before, self._delegate.build(self._model))
        return [self._row(old, new, choices) for old, new in pair_launches(*times)]

    def _row(self, old: Any, new: Any, choices: Mapping[tuple[str, str], Any]) -> TunedKernel:
        launch = (new or old).launch
        item_bytes = self._delegate.item_bytes
        return TunedKernel(
            name=launch.node,
            subgraph=self._name,
            kernel=launch.kernel,
            shape=launch.shape,
            macs=launch.macs,
            bytes=launch.traffic(item_bytes),
            precision="fp16" if item_bytes == 2 else "fp32",
            before_ms=None if old is None else old.ms,
            after_ms=None if new is None else new.ms,
            choice=choices.get(tuned_key(launch)),
        )


def measure_in_turns(before: OpenCLCompiled, after: OpenCLCompiled) -> tuple[list[Any], list[Any]]:
    """The least time of each launch before and after tuning, both measured in turns."""
    profiles: list[list[Any]] = [before.profile(1), after.profile(1)]
    for _ in range(TURNS):
        for i, compiled in enumerate((before, after)):
            profiles[i] = [
                min(one, other, key=lambda launch: launch.ms) for one, other in zip(profiles[i], compiled.profile(1), strict=True)
            ]
    return profiles[0], profiles[1]


def pair_launches(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Launches of the same node before and after; another algorithm has other launches, whose times stand for the node."""
    pairs: list[tuple[Any, Any]] = []
    nodes = list(dict.fromkeys([one.launch.node for one in before] + [one.launch.node for one in after]))
    for node in nodes:
        old, new = ([one for one in rows if one.launch.node == node] for rows in (before, after))
        if [one.launch.kernel for one in old] == [one.launch.kernel for one in new]:
            pairs += zip(old, new, strict=True)
        else:
            pairs += [(one, None) for one in old] + [(None, one) for one in new]
    return pairs
