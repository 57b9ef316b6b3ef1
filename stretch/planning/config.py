"""Requests to the planner: the options, the objective, and the request that holds them."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from predictors.devices import DeviceProfile, Processor
from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.faults import nearest
from predictors.joins import DEFAULT, join_of, joins_that
from predictors.rewrites import rewrites
from stretch.planning.constraints import constraints
from stretch.planning.design.branch_design import exact_kinds
from stretch.planning.messages import format_value
from stretch.planning.options import Help, Option, Positive, Range, Ratio

if TYPE_CHECKING:
    from stretch.planning.cost.accuracy import AccuracySource

#: The paper's strategy: a processor has the same depth and width ratio in every segment that branches.
GRID = "grid"

#: Kind of a segment in addition to its exact divisions (`stretch.planning.design.branch_design`): scaled copies.
STRETCH = "stretch"

#: How branches may meet: the joins of stretched branches, or ``auto`` to let the planner choose.
JOINS = ("auto", *joins_that(lambda join: not join.exact))

#: Units of the quantities that add up over the segments of a design; a weighted sum may combine these quantities.
ADDITIVE_UNITS = {"latency": "ms", "energy": "mJ"}
#: The objective of the highest predicted accuracy within a latency budget.
ACCURACY = "accuracy"

#: Item of a request's `rewrite` that adds the rewrites of the device's profile.
PROFILE = "profile"

#: The order of help and docs; options of further constraints follow by name.
FIRST = ( "processors" , "alpha" , "beta" , "balance" , "min_depth" , "min_width" , "macs" , "segment_macs" , "params" , "n_meet" , "meet" , "merge" , "keep" , "kinds" , "lossless" , "join" , "rewrite" , "strategy" , "objective" , "accuracy" , "min_accuracy" , "min_agreement" , "precision" , "peak_memory" , "latency_budget" , )  # fmt: skip


_TERM = re.compile(r"(?:(?P<weight>[^*]+)\*)?\s*(?P<name>[a-z_]+)\s*")


def read_objective(text: str) -> dict[str, float]:
    """Parse an objective: one word, or a weighted sum of latency and energy such as ``0.7*latency+0.3*energy``.

    Returns:
        Weights of quantities that add up over the segments of a design, by name; empty for the accuracy.
    """
    objective: dict[str, float] = {}
    if text.strip() == ACCURACY:
        return objective
    for part in re.split(r"(?<![eE])\+", text):
        term = _TERM.fullmatch(part.strip())
        if term is None:
            hint = "write a word, or weights, as `objective=0.7*latency+0.3*energy`"
            raise UsageError(f"`objective={text}` is not understood", hint)
        name = term["name"]
        if name == ACCURACY:
            raise UsageError(f"the objective `{name}` is not weighed against others", f"ask for {name} alone, or weigh latency and energy")
        if name not in ADDITIVE_UNITS:
            raise UnknownNameError.among("objective", name, (*ADDITIVE_UNITS, ACCURACY))
        if name in objective:
            raise UsageError(f"the objective names `{name}` twice", "give each one weight")
        objective[name] = _weight(term["weight"] or "1", name)
    if not any(objective.values()):
        raise UsageError("all weights of the objective are 0", "give one of them a weight")
    return objective


def _weight(word: str, name: str) -> float:
    with suppress(ValueError):
        if isfinite(weight := float(word)) and weight >= 0:
            return weight
    raise UsageError(f"the weight `{word.strip()}` of {name} is not a number from 0 up", "write it as 0.3*energy")


if TYPE_CHECKING:
    JoinName: TypeAlias = str

    class _ConstraintFields(msgspec.Struct, kw_only=True, frozen=True):
        """The fields of constraints as a type checker knows them; further constraints add theirs at run time."""

        alpha: float = 0.2
        beta: float = 1.1
        balance: float = 0.5
        min_depth: float = 0.5
        min_width: float | None = None
        intact: float | None = None
        macs: tuple[float, float] = (0.97, 1.03)
        segment_macs: float = 0.9
        n_meet: int = 1
        peak_memory: int | None = None

else:
    JoinName = Literal[JOINS]
    _ConstraintFields = msgspec.defstruct(
        "_ConstraintFields",
        [(name, constraint.option.kind, constraint.option.default) for name, constraint in constraints.items()],
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )


class PlanConfig(_ConstraintFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Constraints, objective and strategy of one planning run."""

    processors: Annotated[tuple[str, ...], Help("Processors to use, such as cpu,gpu; all of the device's by default.")] = ()
    params: Annotated[Range | None, Help("Range of parameters relative to the original's.", example="0.97:1.03")] = None
    meet: Annotated[
        tuple[str, ...], Help("Names of meeting points, separated by commas; the ends of the network's stages by default.")
    ] = ()
    merge: Annotated[
        Literal["never", "auto", "always"],
        Help("Merge neighbouring stages: never, auto (where nothing can branch otherwise) or always (where it is faster)."),
    ] = "auto"
    keep: Annotated[
        tuple[str, ...],
        Help(
            "Stages that are not stretched, separated by commas: they stay whole, or are split exactly if `kinds` allows it.",
            example="s1,s4",
        ),
    ] = ()
    kinds: Annotated[
        tuple[str, ...],
        Help(
            "How segments may be split: stretch (scaled copies, the default), rows, channels, graph (the network's own paths), or several, such as stretch,rows. All but stretch keep the output."
        ),
    ] = ()
    lossless: Annotated[
        bool,
        Help(
            "Use only splits that keep the output identical in fp32. No training needed. Uses fp32 and fp16 unless `precision` asks for int8."
        ),
    ] = False
    join: Annotated[
        JoinName, Help(f"How branches meet: {', '.join(JOINS[:-1])} or {JOINS[-1]}; auto is {DEFAULT}, which keeps segments independent.")
    ] = "auto"
    strategy: Annotated[
        Literal["exact", "grid"],
        Help("How designs are searched: exact, or grid (the same ratios in every segment, as in the paper)."),
    ] = "exact"
    objective: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=80),
        Help(
            "What to optimise: latency, energy (mJ), a weighted sum such as 0.7*latency+0.3*energy, or accuracy within a latency budget.",
            example="0.7*latency+0.3*energy",
        ),
    ] = "latency"
    accuracy: Annotated[
        str,
        Help(
            "File that predicts accuracy: the accuracy.json of `stretch export --rank`, or the sensitivity.json of `stretch search --images`.",
            file=True,
        ),
    ] = ""
    min_accuracy: Annotated[Ratio | None, Help("Minimum predicted top-1 accuracy; needs accuracy.")] = None
    min_agreement: Annotated[
        Ratio | None,
        Help(
            "Minimum share of images on which the new network must predict the original's class, for example 0.95. Predicted while planning, then measured."
        ),
    ] = None
    precision: Annotated[
        dict[str, str],
        Help("Planned precision by processor, such as cpu=int8,gpu=fp16; the profile's by default.", example="cpu=int8,gpu=fp16"),
    ] = msgspec.field(default_factory=dict)
    rewrite: Annotated[
        tuple[str, ...],
        Help(
            "Replaced operators of stretched branches, such as gpu:silu=relu6,dsp:squeeze_excite=none. gpu:resolution=half lets that branch "
            "see the image at half its resolution, with up to twice the channels. Default: those of the profile, which `profile` adds to others.",
            example="gpu:silu=relu6",
        ),
    ] = ()
    latency_budget: Annotated[Positive | None, Help("Maximum predicted latency, ms.")] = None

    @property
    def resolved_join(self) -> str:
        """The requested join, with `auto` resolved."""
        return DEFAULT if self.join == "auto" else self.join

    @property
    def widens(self) -> bool:
        """Whether the requested join couples the widths of segments, which only `search_concat` can plan."""
        return join_of(self.resolved_join).widens

    @property
    def planned_kinds(self) -> tuple[str, ...]:
        """The allowed kinds of segments, with defaults filled in."""
        return self.kinds or (exact_kinds() if self.lossless else (STRETCH,))

    @property
    def parsed_objective(self) -> dict[str, float]:
        """The parsed objective; `read_objective` refuses malformed text."""
        return read_objective(self.objective)

    @property
    def exact(self) -> bool:
        """Whether every design within the request computes exactly the original's output."""
        return STRETCH not in self.planned_kinds

    def replace(self, values: Mapping[str, Any]) -> "PlanConfig":
        """Return this request with some options replaced.

        Args:
            values: New values by option name; all other options stay the same.

        Raises:
            UnknownNameError: If no option has this name.
            UsageError: If a value has the wrong type or is out of range.
        """
        for name in values:
            if name not in _BY_NAME:
                raise UnknownNameError.among("option of the planner", name, [option.name for option in PLAN_OPTIONS])
        return msgspec.structs.replace(self, **{name: _BY_NAME[name].validate(value) for name, value in values.items()})

    def resolve(self, device: DeviceProfile) -> "PlanConfig":
        """Return this request, checked and with defaults filled in for `device`.

        Exact designs need no calibration images. So without a stated precision each processor is planned in fp32 or fp16,
        which need no images either. Processors that only have int8 are left out if two others remain.

        Raises:
            UsageError: If a value is out of range or does not fit another.
            UnknownNameError: If the device lacks a processor.
        """
        request = self.replace(msgspec.structs.asdict(self))
        request._check_combinations()
        processors = request.processors
        if not processors:
            processors = device.default_processors
            with_floats = tuple(name for name in processors if name in request.precision or float_precision(device.processor(name)))
            processors = with_floats if request.exact and len(with_floats) > 1 else processors
        _check_processors(processors, device)
        known = {*processors, *(device.processor(name).family for name in processors)}
        for name in (name for name in request.precision if name not in known):
            raise UsageError(f"a precision is given for `{name}`, which is not among the processors {', '.join(processors)}")
        precision = {}
        for name in processors:
            processor = device.processor(name)
            named = request.precision.get(name, request.precision.get(processor.family))
            precision[name] = processor.check_precision(named or (float_precision(processor) if request.exact else None))
        request.rewrites_on(processors, device)
        min_width = request.min_width if request.min_width is not None else default_min_width(len(processors))
        return msgspec.structs.replace(request, processors=processors, precision=precision, min_width=min_width)

    def rewrites_on(self, processors: Sequence[str], device: DeviceProfile) -> dict[str, tuple[str, ...]]:
        """Return the rewrites by processor: the request's, else the profile's; refuse unknown rewrites and processors."""
        result: dict[str, tuple[str, ...]] = {}
        if not self.rewrite or PROFILE in self.rewrite:
            result = {processor: device.processor(processor).profile.rewrites for processor in processors}
            for processor, name in ((processor, name) for processor, names in result.items() for name in names if name not in rewrites):
                problem = f"processor `{processor}` of {device.id} has the unknown rewrite `{name}` in its profile"
                raise StretchError(problem, nearest(name, rewrites))
        for item in (item for item in self.rewrite if self.rewrite != ("none",) and item != PROFILE):
            where, colon, name = item.rpartition(":")
            if not colon:
                raise UsageError(f"the rewrite `{item}` names no processor", "write `rewrite=gpu:silu=relu6`, or `rewrite=none`")
            named = [processor for processor in processors if where in (processor, processor.partition("[")[0])]
            if not named:
                raise UsageError(f"a rewrite is given for `{where}`, which is not among the processors {', '.join(processors)}")
            rewrites.get(name)
            result |= {processor: (*result.get(processor, ()), name) for processor in named}
        return result

    def replace_processors(self, processors: tuple[str, ...]) -> "PlanConfig":
        """Return this checked request for a subset of its processors, with the default width floor for their number."""
        mapping = {name: at for name, at in self.precision.items() if name in processors}
        floor = default_min_width(len(processors)) if self.min_width == default_min_width(len(self.processors)) else self.min_width
        return msgspec.structs.replace(self, processors=processors, precision=mapping, min_width=floor)

    def check_source(self, source: "AccuracySource | None") -> None:
        """Refuse a request on accuracy without a source, with a source of another measure, or with a search that cannot use it."""
        about = self._accuracy_option
        if source is not None and (self.strategy == GRID or self.widens):
            widening = " and ".join(f"`{name}`" for name in joins_that(lambda join: join.widens))
            problem = f"accuracy is planned for by the exact search and joins other than {widening} only"
            raise UsageError(problem, "leave out `strategy` and `join`")
        if about is None:
            return
        if source is None:
            hint = "give `images` to measure the sensitivity on, or a file as `accuracy`"
            raise UsageError("planning for agreement needs a measured sensitivity", hint)
        if about != "objective" and about != source.option:
            predicted = "agreement with the original" if source.option == "min_agreement" else "top-1"
            reason = f"`{about}` cannot be planned for: the accuracy predictor is one of {predicted}"
            raise UsageError(reason, f"ask for `{source.option}`")

    @property
    def _accuracy_option(self) -> str | None:
        """The option that concerns accuracy; None if the request sets none."""
        named = (name for name in ("min_accuracy", "min_agreement") if getattr(self, name) is not None)
        return next(named, "objective" if self.objective == "accuracy" else None)

    def _check_combinations(self) -> None:
        for problem, name in (("MACs", "macs"), ("parameter", "params")):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                raise UsageError(f"the {problem} range {bounds[0]:g}:{bounds[1]:g} is empty", "write the smaller ratio first")
        self._check_kinds()
        if self.widens and (self.strategy != "exact" or self.params is not None):
            problem = f"`{self.join}` joins are planned without `strategy` and `params`"
            raise UsageError(problem, f"leave them out, or use `join={DEFAULT}`")
        unsearched = self.strategy == GRID
        if not only_latency(self) and self.objective != ACCURACY:
            problem = f"the objective `{self.objective}` is not planned for"
            self._refuse("objective", problem, join=self.widens, params=self.params is not None, strategy=unsearched)
        about = self._accuracy_option
        if about in ("min_accuracy", "objective") and not self.accuracy:
            hint = "give the file that `stretch export --rank` makes, as `accuracy`"
            raise UsageError("planning for accuracy needs a predictor", hint)
        if self.params is not None and about is not None:
            raise UsageError("parameters and accuracy cannot be bounded at once", _leave_out_hint("params", about))
        if self.objective == "accuracy" and self.latency_budget is None:
            raise UsageError("the objective `accuracy` needs a bound on latency", "give `latency_budget`, ms")

    def _refuse(self, option: str, problem: str, **unfit: bool) -> None:
        """Refuse an option in combination with each option whose value in `unfit` is true."""
        for name in (name for name, refused in unfit.items() if refused):
            raise UsageError(f"{problem} with `{name}={format_value(getattr(self, name))}`", _leave_out_hint(option, name))

    def _check_kinds(self) -> None:
        """Refuse unknown kinds of segments, and kinds that another option rules out."""
        known = (STRETCH, *exact_kinds())
        for kind in self.kinds:
            if kind not in known:
                raise UnknownNameError.among("kind of segment", kind, known)
        if self.lossless and STRETCH in self.kinds:
            problem = f"segments of the kind `{STRETCH}` make another network, which a lossless design is not"
            raise UsageError(problem, _leave_out_hint("lossless", "kinds"))
        if exact := next((kind for kind in self.planned_kinds if kind != STRETCH), None):
            self._refuse("kinds", f"segments of the kind `{exact}` are not planned", join=self.widens, strategy=self.strategy == GRID)


_BY_NAME = {name: constraint.option for name, constraint in constraints.items()}
_BY_NAME |= {field.name: Option.of(field) for field in msgspec.structs.fields(PlanConfig) if field.name not in _BY_NAME}

#: Every option of the planner.
PLAN_OPTIONS = tuple(_BY_NAME[name] for name in (*FIRST, *sorted(_BY_NAME.keys() - set(FIRST))))

PlanConfig.__doc__ = f"{PlanConfig.__doc__}\n\nArgs:\n" + "\n".join(f"    {option.name}: {option.help}" for option in PLAN_OPTIONS)


def only_latency(request: PlanConfig) -> bool:
    """Return whether the objective of a request is latency and nothing else."""
    return [name for name, weight in request.parsed_objective.items() if weight] == ["latency"]


def _leave_out_hint(first: str, second: str) -> str:
    return f"leave out `{first}` or `{second}`"


def float_precision(processor: Processor) -> str | None:
    """Return the precision to plan a processor in without int8, measured precisions first; None if it only has int8."""
    measured = (precision for precision in processor.precisions if precision in processor.fits or precision in processor.priors)
    candidates = (processor.default_precision, *measured, "fp32", *processor.precisions)
    return next((item for item in candidates if item != "int8" and item in processor.precisions), None)


def default_min_width(processors: int) -> float:
    """Return the default floor on width ratios for this number of processors."""
    return 0.5 if processors == 2 else 0.375


def _check_processors(processors: tuple[str, ...], device: DeviceProfile) -> None:
    families = [device.processor(name).family for name in processors]
    if len(set(families)) != len(families):
        raise UsageError(f"the processors {', '.join(processors)} share cores", "name each processor once")
    if len(processors) < 2:
        reason, hint = f"the profile {device.id} has one", f"`stretch predict` with --device {device.cli_name} predicts the network on it"
        if len(device.processors) > 1:
            reason, hint = "one was named", f"{hint}; the profile {device.id} has {', '.join(device.processors)}"
        raise UsageError(f"branches need at least two processors, and {reason}: {processors[0]}", hint)
