"""`stretch list`: device profiles, models, delegates and environment of this installation."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.models.roofline import MEASURED, ORIGINS, Origin
from predictors.shapes import InputShapes
from stretch.api.parameters import InputShape, TrustCode
from stretch.cli.output import Output
from stretch.planning.messages import command_line
from stretch.stages.abilities import StageAbilities, stage_abilities

if TYPE_CHECKING:
    from rich.console import Console

    from predictors.devices import DeviceProfile

#: Maximum number of models with `--details`: each is built and captured.
MAX_DETAILED = 30


class ListedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """A processor of a device."""

    precisions: list[str]
    default_precision: str
    core_sets: list[str]  # Selectable core sets.
    default_core_set: str | None  # None if it has no core sets.
    width_slice: int  # Preferred multiple of channel counts.
    origin: Origin  # Source of its predicted times in the default precision: ``fit``, ``sibling``, ``relatives`` or ``roofline``.
    cores: dict[str, str]  # Description of each core set.
    #: Sources of the measurements behind its fits, by core set and precision, such as ``1large fp32``; empty without a fit.
    measurements: dict[str, str]


class ListedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device profile."""

    id: str
    name: str  # Product name.
    soc: str  # System on chip.
    calibrated: bool  # Whether the profile was fitted to measurements.
    processors: dict[str, ListedProcessor]
    aliases: list[str]  # Other names that `--device` accepts.
    left_out: dict[str, str]  # Processors of the device that the profile lacks, with the reason.
    sources: dict[str, str]  # Sources of the profile's numbers, by key.


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A named model."""

    name: str
    family: str  # Model family; ``file`` for a file.
    checked: bool  # Whether the project's tests branch it.


class DetailedModel(ListedModel, frozen=True, kw_only=True):
    """A model with the possible changes of its stages."""

    million_macs: float  # Multiply-accumulates of one inference.
    #: Method of its capture: ``traced`` down to single channels, ``exported`` operator by operator, or ``refused``.
    captured: Literal["traced", "exported", "refused"]
    stages: list[StageAbilities]  # Possible changes of each stage; empty if refused.
    why: str  # Reason for a refusal, or empty.


class ListedDelegate(msgspec.Struct, frozen=True, kw_only=True):
    """A delegate."""

    name: str
    summary: str  # One-line description.
    available: bool  # Whether it can run here.
    reason: str | None  # Reason if it cannot run; None otherwise.
    asynchronous: bool  # Whether it enqueues work instead of using a thread.
    computes: bool  # Whether it computes real outputs.
    module: str  # Python module of the class.
    origin: str | None  # Package and entry point of a third-party delegate; None for built-in ones.


def list_(
    out: Output,
    what: Annotated[Literal["devices", "models", "delegates", "env"], typer.Argument(help="Subject of the list; env is for a bug report.")],
    name: Annotated[
        str | None,
        typer.Argument(
            help="Of devices: the id of a profile or the name of its device or chip, which is shown in detail. Of models: a wildcard pattern, "
            "such as 'resnet*' or 'timm:*next*', or an .onnx, .pt2 or .tflite file.",
        ),
    ] = None,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Of models: capture each and show which stages can be scaled or divided, and why not. Of a device: all sources.",
        ),
    ] = False,
    shape: InputShape = None,
    trust_code: TrustCode = False,
) -> None:
    """List device profiles, models, runtimes, or facts about this machine."""
    if name is not None and what in ("delegates", "env"):
        raise UsageError(f"the list of {what} takes no name", f"leave `{name}` out")
    if details and (what in ("delegates", "env") or (what == "devices" and name is None)):
        raise UsageError("--details is about models and single devices", "leave it out, or name a device")
    if shape is not None and not (details and what == "models"):
        raise UsageError("a list of models reads no input", "leave out --input, or add --details")
    match what:
        case "devices":
            _list_devices(out, name, details)
        case "models":
            _list_models(out, name or "*", shape, details, trust_code)
        case "delegates":
            _list_delegates(out)
        case "env":
            _list_environment(out)


def _list_devices(out: Output, device: str | None, details: bool) -> None:
    from predictors.devices import list_devices, load_device

    items = [_listed_device(load_device(name)) for name in (list_devices() if device is None else [device])]
    out.emit(
        {"items": items},
        lambda console: _print_devices(console, items) if device is None else _print_device(console, items[0], device, details),
    )


def _print_devices(console: "Console", items: Sequence[ListedDevice]) -> None:
    from stretch.report.fit import table

    rows = [
        (
            item.id,
            item.name,
            ", ".join(f"{name} ({p.default_precision})" for name, p in item.processors.items()),
            ", ".join(name for name, p in item.processors.items() if p.origin in MEASURED) or "none",
        )
        for item in items
    ]
    console.print(table("device", "name", "processors (default precision)", "measured there", rows=rows))
    console.print("`stretch list devices ID` shows one in detail; `--device` also accepts names of devices and chips, such as sm8750")


def _print_device(console: "Console", item: ListedDevice, named: str, details: bool) -> None:
    from stretch.report.brief import SOURCES
    from stretch.report.fit import table

    lines = [f"{item.id}: {item.name} ({item.soc})"]
    if item.aliases:
        lines.append(f"Other names: {', '.join(item.aliases)}.")
    if not details:
        rows = [
            (name, processor.default_precision, ", ".join(core_set for core_set in processor.core_sets) or "-", SOURCES[processor.origin])
            for name, processor in item.processors.items()
        ]
        console.print("\n".join(lines))
        console.print()
        console.print(table("processor", "precision", "core sets", "times based on", rows=rows), width=80)
        console.print()
        for name, reason in item.left_out.items():
            console.print(f"Left out: {name}; {reason}", width=80)
        console.print(f"Next: {command_line('advise', 'MODEL', '--device', named)}", soft_wrap=True)
        console.print(f"      {command_line('list', 'devices', named, '--details')}    where each number comes from", soft_wrap=True)
        return
    for name, processor in item.processors.items():
        lines += ["", f"{name}: {', '.join(processor.precisions)} ({processor.default_precision} by default)"]
        lines.append(f"  times in {processor.default_precision}: from {ORIGINS[processor.origin]}")
        for core_set, words in processor.cores.items():
            lines.append(f"  {name if core_set == processor.default_core_set else f'{name}[{core_set}]'}: {words}")
        for source in dict.fromkeys(processor.measurements.values()):
            where = ", ".join(key for key, source_id in processor.measurements.items() if source_id == source)
            lines.append(f"  {where}: {source}")
    for name, reason in item.left_out.items():
        lines += ["", f"{name}: left out; {reason}"]
    lines += ["", "sources of the other numbers:", *(f"  {key}: {words}" for key, words in item.sources.items())]
    for line in lines:
        console.print(line)


def _listed_device(device: "DeviceProfile") -> ListedDevice:
    from predictors.predictor import origin_of

    processors = {
        family: ListedProcessor(
            precisions=list(device.processor(family).precisions),
            default_precision=processor.default_precision,
            core_sets=list(processor.core_sets),
            default_core_set=processor.default_core_set,
            width_slice=device.processor(family).width_slice,
            origin=origin_of(device.processor(family), processor.default_precision),
            cores={name: core_set.cores for name, core_set in processor.core_sets.items()},
            measurements={
                f"{core_set} {precision}": fit.source for (name, core_set, precision), fit in device.fits.items() if name == family
            },
        )
        for family, processor in device.processors.items()
    }
    return ListedDevice(
        id=device.id,
        name=device.name,
        soc=device.soc,
        calibrated=device.calibrated,
        processors=processors,
        aliases=list(device.aliases),
        left_out=dict(device.left_out),
        sources=device.sources,
    )


def _listed_models(pattern: str) -> list[ListedModel]:
    """Return the models that match a pattern, or the model of a file."""
    from stretch.network.models import model_names
    from stretch.network.models.families import BUILT_IN, each_family
    from stretch.network.models.load import FILES

    if pattern.endswith(FILES) and Path(pattern).is_file():
        return [ListedModel(name=pattern, family="file", checked=False)]
    known = model_names(pattern)
    checked = set()
    for key, family in each_family():
        # families of other packages may lack attributes that only this project uses
        if key in BUILT_IN or any(known_key == key for _, known_key in known):
            checked |= {family.prefix + name for name in getattr(family, "checked", frozenset)()}
    if not known:
        raise UnknownNameError.among("model", pattern, [name for name, _ in model_names()])
    return [ListedModel(name=name, family=family, checked=name in checked) for name, family in known]


def _list_models(out: Output, pattern: str, shape: InputShapes | None, details: bool, trust_code: bool) -> None:
    items = _listed_models(pattern)
    if not details:
        width = max(len(item.name) for item in items)
        lines = [f"{item.name:<{width}}  {item.family:<11}  {'checked' if item.checked else ''}".rstrip() for item in items]
        out.emit({"items": items}, lambda console: console.print("\n".join(lines)))
        return
    if len(items) > MAX_DETAILED:
        raise UsageError(f"{len(items)} models match `{pattern}`, and --details shows up to {MAX_DETAILED}", "give a narrower pattern")
    detailed = []
    with out.progress("models", total=len(items)) as step:
        for number, item in enumerate(items):
            step(item.name, number)
            detailed.append(_capture_details(item, shape, trust_code))
    out.emit({"items": detailed}, lambda console: _print_details(console, detailed))


def _capture_details(item: ListedModel, shape: InputShapes | None, trust_code: bool) -> DetailedModel:
    """Capture a model with random weights, or a file with its own weights, and return its details."""
    from stretch.stages.network import read_network

    try:
        network = read_network(
            item.name, shape, weights="default" if item.family == "file" else "none", trust_code=trust_code, fit_statistics=False
        )
        stages = stage_abilities(network.graph)
    except UsageError:
        # a wrong request is not the model's fault
        raise
    except StretchError as error:
        macs, stages, why = 0.0, [], error.message
        how: Literal["traced", "exported", "refused"] = "refused"
    else:
        macs, why = round(network.graph.macs / 1e6, 1), ""
        how = "exported" if network.captured.refusal else "traced"
    name, family, checked = item.name, item.family, item.checked
    return DetailedModel(name=name, family=family, checked=checked, million_macs=macs, captured=how, stages=stages, why=why)


def _print_details(console: "Console", items: Sequence[DetailedModel]) -> None:
    from stretch.report.fit import table

    for item in items:
        outcome = f"refused: {item.why}" if item.captured == "refused" else f"{item.million_macs:.4g} MMACs, {item.captured}"
        console.print(f"{item.name}  ({outcome})")
        rows = (
            (
                stage.name,
                "×".join(map(str, stage.shape[1:])),
                f"{stage.min_depth} to {stage.depth}" if stage.min_depth < stage.depth else str(stage.depth),
                ", ".join(stage.scaled) or "-",
                ", ".join(stage.exact) or "placed only",
                stage.why,
            )
            for stage in item.stages
        )
        if item.stages:
            console.print(table("stage", "shape", "blocks", "scaled", "exact", "why not stretched", rows=rows))


def _list_delegates(out: Output) -> None:
    from scheduler.delegates import delegates as registry
    from scheduler.delegates import load_plugins, origin

    broken = load_plugins()
    items = []
    for name in registry:
        delegate = registry.get(name)
        try:
            problem = delegate.unavailable()
        except Exception as error:
            if origin(name) is None:
                raise
            broken[name] = problem = f"{type(error).__name__}: {error} ({origin(name)})"
        # a delegate without a summary has its docstring's first line
        first = ((delegate.__dict__.get("__doc__") or "").strip().splitlines() or [f"no summary, from {delegate.__module__}"])[0]
        items.append(
            ListedDelegate(
                name=name,
                summary=str(delegate.summary) or first,
                available=problem is None,
                reason=problem,
                asynchronous=delegate.asynchronous,
                computes=delegate.computes,
                module=delegate.__module__,
                origin=origin(name),
            )
        )
    for name, problem in sorted(broken.items()):
        out.warn(f"delegate `{name}` of another package cannot be used: {problem}")

    def human(console: "Console") -> None:
        from stretch.report.fit import table

        rows = (
            (
                item.name,
                item.summary,
                "yes" if item.available else f"no: {item.reason}",
                "enqueued, no thread" if item.asynchronous else "calling thread or a dedicated thread",
            )
            for item in items
        )
        console.print(table("delegate", "description", "available", "how work reaches it", rows=rows))

    out.emit({"items": items, "broken": broken}, human)


def _list_environment(out: Output) -> None:
    from scheduler.cores import available_cores
    from stretch import __version__
    from stretch.profile.environment import OTHERS, OURS, folder, opencl_devices, other_owner, processor_name, version

    machine = {"python": platform.python_version(), "system": platform.platform(), "processor": processor_name()}
    data: dict[str, Any] = {"nn_stretch": __version__, **machine, "cores": sorted(available_cores()), "opencl": opencl_devices()}
    data |= {"packages": {name: version(name) for name in OTHERS}, "imported_from": {name: str(folder(name)) for name in OURS}}
    lines = {
        "nn-stretch": __version__,
        **machine,
        "cores": ", ".join(map(str, data["cores"])),
        "opencl": data["opencl"] or "none",
        **{name: version or "not installed" for name, version in data["packages"].items()},
        **{f"{name} from": where for name, where in data["imported_from"].items()},
    }
    for name in OURS:
        if stranger := other_owner(name):
            out.warn(
                f"`{name}` also belongs to the distribution `{stranger}`, whose files may replace ours: pip uninstall {stranger}, then reinstall nn-stretch"
            )
        if folder(name).parent != folder("stretch").parent:
            out.warn(f"`{name}` is imported from {folder(name)}, not from the folder of `stretch`")
    data |= {"warnings": out.warnings, "items": [{"name": name, "value": value} for name, value in lines.items()]}
    text = "\n".join(f"{name:<16} {value}" for name, value in lines.items())
    out.emit(data, lambda console: console.print(text, soft_wrap=True))
