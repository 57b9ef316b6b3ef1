"""What a person may ask of the planner."""

from typing import Annotated, Literal

import msgspec

from predictors.devices import DeviceProfile
from predictors.errors import UsageError

Strategy = Literal["exact", "grid"]
Merge = Literal["never", "auto", "always"]
Objective = Literal["latency", "accuracy"]
JoinChoice = Literal["auto", "concat", "project", "sum"]

_Ratio = Annotated[float, msgspec.Meta(ge=1e-6, le=1)]
#: Bounds are ratios and milliseconds: none is beyond these, and numbers of operators times them stay whole numbers of 64 bits.
_Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]


class PlanConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Constraints, objective and strategy of one planning run.

    Args:
        processors: Processors that branches may use; all of the device's if empty.
        alpha: Communication of a segment over its latency, at most (paper 003, eq. 4).
        beta: A branch on its processor over the original segment on the fastest
            allowed processor, at most (eq. 5).
        balance: Fastest over slowest branch of a segment, at least: multiply-accumulates
            in proportion to processor speed (eq. 6), as a bound.
        min_depth: Depth ratio of a branch, at least.
        min_width: Width ratio of a branch, at least; None for 0.5 with two
            processors and 0.375 with more.
        macs: Multiply-accumulates of the branched over those of the original model.
        segment_macs: The same of each branched segment, at least.
        objective: ``latency``: the fastest design; ``accuracy``: the design of the highest predicted
            accuracy within `latency_budget`, which needs `accuracy`.
        join: How branches meet; ``auto`` uses `project`, which keeps segments independent.
        strategy: ``exact``, or ``grid`` for the paper's uniform ratios.
        precision: Precision by processor where it is not the profile's default.
        n_meet: Meeting points where branches join, at least.
        meet: Meeting points; the network's stages if empty.
        merge: Whether neighbouring stages may become one segment: ``auto`` where there is no
            design otherwise and no meeting points are given, ``always`` where it is faster.
        params: Parameters of the branched over those of the original model, if bounded.
        peak_memory: Bytes of activations alive at one time, at most.
        latency_budget: Predicted makespan, at most, ms.
        accuracy: File of an accuracy predictor (`stretch.planning.cost.accuracy`).
        min_accuracy: Predicted top-1, at least; needs `accuracy`.
    """

    processors: tuple[str, ...] = ()
    alpha: _Positive = 0.2
    beta: _Positive = 1.1
    balance: _Ratio = 0.5
    min_depth: _Ratio = 0.5
    min_width: _Ratio | None = None
    macs: tuple[_Positive, _Positive] = (0.97, 1.03)
    segment_macs: _Ratio = 0.9
    objective: Objective = "latency"
    join: JoinChoice = "auto"
    strategy: Strategy = "exact"
    precision: dict[str, str] = {}
    n_meet: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    meet: tuple[str, ...] = ()
    merge: Merge = "auto"
    params: tuple[_Positive, _Positive] | None = None
    peak_memory: Annotated[int, msgspec.Meta(gt=0, le=1 << 50)] | None = None
    latency_budget: _Positive | None = None
    accuracy: str = ""
    min_accuracy: _Ratio | None = None

    def checked(self, device: DeviceProfile) -> "PlanConfig":
        """This configuration with defaults filled in for `device`.

        Raises:
            UsageError: If a value is out of range or does not fit another.
            UnknownNameError: If the device lacks a processor.
        """
        try:
            msgspec.convert(msgspec.to_builtins(self), PlanConfig)
        except msgspec.ValidationError as error:
            raise UsageError(f"this cannot be planned: {error}") from error
        processors = self.processors or tuple(device.processors)
        families = [device.processor(name).family for name in processors]
        if len(set(families)) != len(families):
            raise UsageError(f"the processors {', '.join(processors)} share cores", "name each processor once")
        if len(processors) < 2:
            raise UsageError("branches need at least two processors", f"{device.id} has {', '.join(device.processors)}")
        for what, bounds in (("MACs", self.macs), ("parameter", self.params)):
            if bounds is not None and bounds[0] > bounds[1]:
                raise UsageError(f"the {what} range {bounds[0]:g}:{bounds[1]:g} is empty", "write the smaller ratio first")
        if (self.objective == "accuracy" or self.min_accuracy is not None) and not self.accuracy:
            raise UsageError("planning for accuracy needs a predictor", "give --accuracy FILE, made by `stretch extract --rank`")
        if self.params is not None and (self.objective == "accuracy" or self.min_accuracy is not None):
            raise UsageError("parameters and accuracy cannot be bounded at once", "leave out --params or --min-accuracy")
        if self.objective == "accuracy" and self.latency_budget is None:
            raise UsageError("the objective `accuracy` needs a bound on latency", "give --latency-budget MS")
        for name in self.precision:
            if name not in families and name not in processors:
                raise UsageError(f"a precision is given for `{name}`, which is not among the processors {', '.join(processors)}")
        precision = {}
        for name in processors:
            processor = device.processor(name)
            precision[name] = processor.check_precision(self.precision.get(name, self.precision.get(processor.family)))
        min_width = self.min_width if self.min_width is not None else (0.5 if len(processors) == 2 else 0.375)
        return msgspec.structs.replace(self, processors=processors, precision=precision, min_width=min_width)
