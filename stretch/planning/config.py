"""What a person may ask of the planner: its options, and a request made of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from predictors.devices import DeviceProfile, Processor
from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.faults import nearest
from predictors.joins import DEFAULT, join_of
from predictors.rewrites import rewrites
from stretch.planning.constraints import all_constraints
from stretch.planning.design.division import exact_kinds
from stretch.planning.messages import Message, OptionName
from stretch.planning.objective import Objective, read_objective
from stretch.planning.options import Option
from stretch.planning.own_options import OWN, SINGLE, STRETCH, WHOLE

if TYPE_CHECKING:
    from stretch.planning.cost.accuracy import AccuracySource

#: The order of help and docs; options of further constraints follow by name.
FIRST = (
    "processors", "alpha", "beta", "balance", "min_depth", "min_width", "macs", "segment_macs", "params", "n_meet", "meet",
    "merge", "cuts", "keep", "kinds", "lossless", "join", "rewrite", "strategy", "objective", "accuracy", "min_accuracy", "min_agreement", "precision", "peak_memory", "latency_budget",
)  # fmt: skip


def _ordered() -> tuple[Option, ...]:
    ordered = {option.name: option for option in (*OWN, *(constraint.option for constraint in all_constraints()))}
    return tuple(ordered[name] for name in (*FIRST, *sorted(ordered.keys() - set(FIRST))))


#: Every option of the planner.
PLAN_OPTIONS = _ordered()

_Fields = msgspec.defstruct(
    "_Fields",
    [(plan_option.name, plan_option.kind, plan_option.default) for plan_option in PLAN_OPTIONS],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
)


class PlanConfig(_Fields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Constraints, objective and strategy of one planning run."""

    def __post_init__(self) -> None:
        """Read the kind ``graph`` where files say ``own``, as it was called."""
        if "own" in self.kinds:
            msgspec.structs.force_setattr(self, "kinds", tuple("graph" if kind == "own" else kind for kind in self.kinds))

    @property
    def meets_by(self) -> str:
        """The join that is asked for, `auto` resolved."""
        return DEFAULT if self.join == "auto" else self.join

    @property
    def widens(self) -> bool:
        """Whether the join asked for couples segments by their widths, which only one search knows how to plan."""
        return join_of(self.meets_by).widens

    @property
    def planned_kinds(self) -> tuple[str, ...]:
        """What segments may become, defaults filled in."""
        named = tuple(kind for kind in self.kinds if kind != WHOLE)
        if named or self.strategy in SINGLE:
            return named or ("rows",)
        return exact_kinds() if self.lossless else (STRETCH,)

    @property
    def best_in(self) -> Objective:
        """What a design is to be best in.

        Raises:
            UsageError: If it is not written as it should be.
        """
        return read_objective(self.objective)

    @property
    def tries(self) -> bool:
        """Whether designs are tried one by one, because that is asked for or the objective does not add up."""
        return self.strategy == "evolve" or self.best_in.tried

    @property
    def leaves_design_open(self) -> bool:
        """Whether the design is left to the planner: nothing is asked for beyond processors, precisions, and that nothing changes."""
        return all(
            getattr(self, plan_option.name) == plan_option.default
            for plan_option in PLAN_OPTIONS
            if plan_option.name not in ("processors", "precision", "lossless")
        )

    @property
    def exact(self) -> bool:
        """Whether every design that is asked for computes exactly what the original computes."""
        return STRETCH not in self.planned_kinds

    def having(self, values: Mapping[str, Any]) -> "PlanConfig":
        """This request with other options.

        Args:
            values: By name; options that are not named stay as they are.

        Raises:
            UnknownNameError: If there is no such option.
            UsageError: If a value is of another kind, or out of range.
        """
        known = {option.name: option for option in PLAN_OPTIONS}
        for name in values:
            if name not in known:
                raise UnknownNameError.among("option of the planner", name, known)
        return msgspec.structs.replace(self, **{name: known[name].checked(value) for name, value in values.items()})

    def checked(self, device: DeviceProfile) -> "PlanConfig":
        """This configuration with defaults filled in for `device`.

        Designs that compute what the original computes need no images. Where nothing is said of a processor's precision they are planned
        in one that needs none either, fp32 or fp16, and leave out processors that have int8 alone, where two others remain.

        Raises:
            UsageError: If a value is out of range or does not fit another.
            UnknownNameError: If the device lacks a processor.
        """
        request = self.having(msgspec.structs.asdict(self))
        request._check_together()
        processors = _processors(request.processors or request._usual_processors(device), device)
        families = [device.processor(name).family for name in processors]
        for name in request.precision:
            if name not in families and name not in processors:
                raise UsageError(f"a precision is given for `{name}`, which is not among the processors {', '.join(processors)}")
        precision = {}
        for name in processors:
            processor = device.processor(name)
            named = request.precision.get(name, request.precision.get(processor.family))
            precision[name] = processor.check_precision(named or (float_precision(processor) if request.exact else None))
        request.rewrites_on(processors, device)
        min_width = request.min_width if request.min_width is not None else least_width(len(processors))
        return msgspec.structs.replace(request, processors=processors, precision=precision, min_width=min_width)

    def _usual_processors(self, device: DeviceProfile) -> tuple[str, ...]:
        """Processors of a request that names none."""
        every = tuple(device.processors)
        able = tuple(name for name in every if name in self.precision or float_precision(device.processor(name)))
        return able if self.exact and len(able) > 1 else every

    def rewrites_on(self, processors: Sequence[str], device: DeviceProfile) -> dict[str, tuple[str, ...]]:
        """Rewrites by processor: those asked for, else those of the device's profile.

        Raises:
            UsageError: If one is not written as it should be, or names a processor that is not among these.
            UnknownNameError: If there is no such rewrite.
        """
        result: dict[str, tuple[str, ...]] = {}
        if not self.rewrite:
            for place in processors:
                result[place] = device.processor(place).profile.rewrites
                for name in result[place]:
                    if name not in rewrites:
                        raise StretchError(
                            f"processor `{place}` of {device.id} has the unknown rewrite `{name}` in its profile", nearest(name, rewrites)
                        )
        for item in self.rewrite if self.rewrite != ("none",) else ():
            where, colon, name = item.rpartition(":")
            if not colon:
                hint = Message("write {}, or {}", OptionName("rewrite", "gpu:silu=relu6"), OptionName("rewrite", "none"))
                raise UsageError(f"the rewrite `{item}` names no processor", hint)
            places = [one for one in processors if where in (one, one.partition("[")[0])]
            if not places:
                raise UsageError(f"a rewrite is given for `{where}`, which is not among the processors {', '.join(processors)}")
            rewrites.get(name)
            for place in places:
                result[place] = (*result.get(place, ()), name)
        return result

    def on(self, processors: tuple[str, ...]) -> "PlanConfig":
        """This checked request for fewer of its processors, as if it had been made for them.

        Args:
            processors: Some of them.
        """
        mapping = {name: at for name, at in self.precision.items() if name in processors}
        floor = least_width(len(processors)) if self.min_width == least_width(len(self.processors)) else self.min_width
        return msgspec.structs.replace(self, processors=processors, precision=mapping, min_width=floor)

    def _check_together(self) -> None:
        """Refuse values that do not fit each other."""
        for what, name in (("MACs", "macs"), ("parameter", "params")):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                raise UsageError(f"the {what} range {bounds[0]:g}:{bounds[1]:g} is empty", "write the smaller ratio first")
        self._check_kinds()
        self._check_objective()
        self._check_cuts()
        about = self._about_accuracy
        if about in ("min_accuracy", "objective") and not self.accuracy:
            hint = Message("give {}, made by `stretch export --rank`", OptionName("accuracy", "FILE"))
            raise UsageError("planning for accuracy needs a predictor", hint)
        if self.params is not None and about is not None:
            hint = Message("leave out {} or {}", OptionName("params"), OptionName(about))
            raise UsageError("parameters and accuracy cannot be bounded at once", hint)
        if self.objective == "accuracy" and self.latency_budget is None:
            raise UsageError("the objective `accuracy` needs a bound on latency", Message("give {}, ms", OptionName("latency_budget")))

    def _check_cuts(self) -> None:
        """Refuse cuts at blocks where another option says where segments meet, or no search has them."""
        if self.cuts != "stages":
            searched = self.strategy in ("exact", "evolve")
            self._refuse("cuts", "segments are not cut at {} with {}", meet=bool(self.meet), join=self.widens, strategy=not searched)

    def _check_objective(self) -> None:
        """Refuse an objective that other options leave no search for."""
        if not self.best_in.only_latency and self.objective != "accuracy":
            searched, text = self.strategy in ("exact", "evolve"), "the objective `{}` is not planned for with {}"
            self._refuse("objective", text, join=self.widens, params=self.params is not None, strategy=not searched)

    def _refuse(self, option: str, text: str, **unfit: bool) -> None:
        """Refuse an option beside another one, if any of some does not fit it."""
        for name in (name for name, refused in unfit.items() if refused):
            raise UsageError(
                Message(text, getattr(self, option), OptionName(name, getattr(self, name))),
                Message("leave out {} or {}", OptionName(option), OptionName(name)),
            )

    @property
    def _about_accuracy(self) -> str | None:
        """The option by which the request is about accuracy; None if it is not."""
        for name in ("min_accuracy", "min_agreement"):
            if getattr(self, name) is not None:
                return name
        return "objective" if self.objective == "accuracy" else None

    def check_source(self, source: "AccuracySource | None") -> None:
        """Refuse a request about accuracy that nothing predicts, or that something else predicts.

        Args:
            source: What predicts it; None for nothing.

        Raises:
            UsageError: If so.
        """
        about = self._about_accuracy
        if about is None:
            return
        if source is None:
            hint = Message("give {} to measure the sensitivity on, or {}", OptionName("images", "DIR"), OptionName("accuracy", "FILE"))
            raise UsageError("planning for agreement needs a measured sensitivity", hint)
        if about != "objective" and about != source.option:
            other = "agreement with the original" if source.option == "min_agreement" else "top-1"
            raise UsageError(
                Message("{} cannot be planned for: the accuracy predictor is one of {}", OptionName(about), other),
                Message("ask for {}", OptionName(source.option)),
            )

    def _check_kinds(self) -> None:
        """Refuse kinds of segments that there are not, or that another option rules out."""
        known = (STRETCH, *exact_kinds(), WHOLE)
        for kind in self.kinds:
            if kind not in known:
                raise UnknownNameError.among("kind of segment", kind, known)
        if set(self.kinds) == {WHOLE}:
            hint = Message("name one more, such as {}", OptionName("kinds", ("rows", WHOLE)))
            raise UsageError("segments that all stay whole leave nothing to plan", hint)
        if self.lossless and STRETCH in self.kinds:
            hint = Message("leave out {} or {}", OptionName("lossless"), OptionName("kinds"))
            raise UsageError(f"segments of the kind `{STRETCH}` make another network, which a lossless design is not", hint)
        if self.strategy in SINGLE and STRETCH in self.kinds:
            hint = Message("leave out {} or {}", OptionName("strategy"), OptionName("kinds"))
            raise UsageError(f"the strategy `{self.strategy}` divides a network exactly, and `{STRETCH}` segments make another one", hint)
        able = self.strategy in ("exact", "evolve", *SINGLE)
        if set(self.planned_kinds) != {STRETCH} and (not able or self.widens):
            what = f"`{self.join}` joins" if able else f"the strategy `{self.strategy}`"
            option = "join" if able else "strategy"
            exact = next(kind for kind in self.planned_kinds if kind != STRETCH)
            raise UsageError(f"segments of the kind `{exact}` are not planned with {what}", Message("leave out {}", OptionName(option)))


def float_precision(processor: Processor) -> str | None:
    """The precision that a processor has by default among those that need no images to find ranges on; None if it has none."""
    usual = (processor.default_precision, "fp32", *processor.precisions)
    return next((item for item in usual if item != "int8" and item in processor.precisions), None)


def least_width(processors: int) -> float:
    """The floor on width ratios where none is asked for."""
    return 0.5 if processors == 2 else 0.375


def _processors(names: tuple[str, ...], device: DeviceProfile) -> tuple[str, ...]:
    """The processors of a request: at least two, that share no cores."""
    processors = names or tuple(device.processors)
    families = [device.processor(name).family for name in processors]
    if len(set(families)) != len(families):
        raise UsageError(f"the processors {', '.join(processors)} share cores", "name each processor once")
    if len(processors) < 2:
        only = len(device.processors) < 2
        raise UsageError(
            f"branches need at least two processors, and {f'the profile {device.id} has one' if only else 'one was named'}: {processors[0]}",
            f"`stretch predict MODEL --device {device.id}` predicts the network on it"
            + ("" if only else f"; the profile {device.id} has {', '.join(device.processors)}"),
        )
    return processors


PlanConfig.__doc__ = f"{PlanConfig.__doc__}\n\nArgs:\n" + "\n".join(
    f"    {plan_option.name}: {plan_option.text}" for plan_option in PLAN_OPTIONS
)
