"""`stretch branch`: a model to a bundle of branches for one device."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictors.errors import UsageError
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from stretch.api import Branched
    from stretch.planning.config import PlanConfig

#: Phases of the bar: import torch, load, capture, plan, transform, and files of a usual bundle.
PHASES = 16


@verb
def branch(
    out: Output,
    model: Annotated[str, typer.Argument(help="Name of `stretch models`, package.module:factory, or file.py:factory.")],
    device: Annotated[str, typer.Option(help="Profile of `stretch devices`, or the path of one.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the bundle; runs/MODEL_DEVICE by default.")] = None,
    design: Annotated[Path | None, typer.Option(help="Build this design (TOML) instead of searching for one.")] = None,
    processors: Annotated[str | None, typer.Option(help="Processors to use, such as cpu,gpu; all of the device's by default.")] = None,
    alpha: Annotated[float, typer.Option(help="Communication of a segment over its latency, at most.")] = 0.2,
    beta: Annotated[float, typer.Option(help="A branch over the whole segment on the fastest processor, at most.")] = 1.1,
    balance: Annotated[float, typer.Option(help="Fastest over slowest branch of a segment, at least.")] = 0.5,
    min_depth: Annotated[float, typer.Option(help="Depth ratio of a branch, at least.")] = 0.5,
    min_width: Annotated[
        float | None, typer.Option(help="Width ratio of a branch, at least; 0.5 for two processors, 0.375 for three.")
    ] = None,
    macs: Annotated[str, typer.Option(help="Range of MACs over the original's.")] = "0.97:1.03",
    segment_macs: Annotated[float, typer.Option(help="MACs of each branched segment over the original segment's, at least.")] = 0.9,
    params: Annotated[str | None, typer.Option(help="Range of parameters over the original's.")] = None,
    n_meet: Annotated[int, typer.Option(help="Meeting points, at least.", min=1)] = 1,
    meet: Annotated[str | None, typer.Option(help="Meeting points, cut points separated by commas.")] = None,
    merge: Annotated[
        str,
        typer.Option(help="Merge neighbouring stages: never, auto (where nothing can branch otherwise) or always (where it is faster)."),
    ] = "auto",
    join: Annotated[str, typer.Option(help="How branches meet: auto, concat, project or sum.")] = "auto",
    strategy: Annotated[str, typer.Option(help="How designs are searched: exact or grid.")] = "exact",
    objective: Annotated[
        str, typer.Option(help="latency: the fastest design; accuracy: the one predicted to be most accurate within --latency-budget.")
    ] = "latency",
    accuracy: Annotated[Path | None, typer.Option(help="Accuracy predictor, the accuracy.json of `stretch extract --rank`.")] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="Predicted top-1, at least; needs --accuracy.")] = None,
    precision: Annotated[str | None, typer.Option(help="Planned precision by processor, such as cpu=int8,gpu=fp16.")] = None,
    peak_memory: Annotated[int | None, typer.Option(help="Bytes of activations alive at one time, at most.", min=1)] = None,
    latency_budget: Annotated[float | None, typer.Option(help="Predicted makespan, at most, ms.")] = None,
    size: Annotated[str | None, typer.Option("--input", help="Input size, such as 3x224x224.")] = None,
    weights: Annotated[str, typer.Option(help="default (trained, where they can be had), none (random), or a file.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of random weights.")] = 0,
    images: Annotated[
        Path | None, typer.Option(help="Folder of unlabelled images (pictures or .npy) to calibrate the new network with.")
    ] = None,
    image_count: Annotated[int, typer.Option(help="Calibration images to take, at most.", min=16)] = 256,
    controls: Annotated[bool, typer.Option("--controls/--no-controls", help="Write the sequential controls into the bundle.")] = True,
    export: Annotated[bool, typer.Option("--export/--no-export", help="Write the bundle.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only: no model is built, nothing is written.")] = False,
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Allow file.py:factory to execute that file.")] = False,
) -> None:
    """Stretch a model into branches for a device's processors and write a bundle that `stretch run` runs."""
    from stretch.api import branch as make
    from stretch.planning.config import PlanConfig

    config = _config(
        PlanConfig,
        processors=_names(processors),
        alpha=alpha,
        beta=beta,
        balance=balance,
        min_depth=min_depth,
        min_width=min_width,
        macs=_range("--macs", macs),
        segment_macs=segment_macs,
        params=_range("--params", params) if params is not None else None,
        n_meet=n_meet,
        meet=_names(meet),
        merge=merge,
        join=join,
        strategy=strategy,
        objective=objective,
        precision=_precision(precision),
        peak_memory=peak_memory,
        latency_budget=latency_budget,
        accuracy=str(accuracy or ""),
        min_accuracy=min_accuracy,
    )
    target = (folder or Path("runs") / _folder_name(model, device)) if export and not dry_run else None
    shape = _input_shape(size) if size is not None else None
    with out.progress("branching", total=PHASES) as step:
        result = make(
            model,
            device,
            out=target,
            config=config,
            design=design,
            input_shape=shape,
            weights=weights,
            seed=seed,
            images=images,
            image_count=image_count,
            controls=controls,
            dry_run=dry_run,
            trust_code=trust_code,
            step=step,
        )
    _tell(out, result)


def _tell(out: Output, result: "Branched") -> None:
    """Warn, and print the plan and what was written."""
    data = result.to_json()
    # one list for people and for programs, with what packages warned of on the way
    for warning in data["warnings"]:
        if warning not in out.warnings:
            out.warn(warning)
    data["warnings"] = out.warnings

    def human(console: "Console") -> None:
        from stretch.report.table import print_plan

        console.print(f"weights: {result.weights_source}" + (f" ({result.weights_detail})" if result.weights_detail else ""))
        print_plan(console, data)
        for error in result.calibration:
            console.print(
                f"calibrated {error.segment}: squared error {error.after:.3f} of the original's square, {error.before:.3f} before"
            )
        if result.manifest is not None:
            console.print(
                f"largest difference of any exported file from torch: {result.manifest.checks['max_error']:.1e} of its largest output"
            )
            # not wrapped: this line is there to be copied
            console.print(f"bundle written; run it with: stretch run {result.bundle}", soft_wrap=True)

    out.emit(data, human)


def _config(kind: "type[PlanConfig]", **values: Any) -> "PlanConfig":
    """A configuration whose values are in range.

    Raises:
        UsageError: If one is not; names the flag.
    """
    import msgspec

    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        where = re.search(r"at `\$\.(\w+)", text)
        flag = "--" + where[1].replace("_", "-") if where else "an option"
        raise UsageError(f"{flag} is out of range: {text.split(' - at')[0].lower()}", "see `stretch branch --help`") from error


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _range(flag: str, text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise UsageError(f"{flag} {text} is no range", f"write it as {flag} 0.97:1.03") from error
    return low, high


def _precision(text: str | None) -> dict[str, str]:
    pairs = [part.partition("=") for part in _names(text)]
    for name, _, value in pairs:
        if not name or not value:
            raise UsageError(f"--precision {text} is not understood", "write it as --precision cpu=int8,gpu=fp16")
    return {name: value for name, _, value in pairs}


def _input_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in re.split("[x,×]", text))
    except ValueError:
        shape = ()
    if len(shape) != 3 or min(shape) < 1:
        raise UsageError(f"--input {text} is no input size", "write channels, height and width as --input 3x224x224")
    return (1, *shape)


def _folder_name(model: str, device: str) -> str:
    """``resnet50_pixel6``; a path or a factory becomes a plain name."""
    parts = [Path(model.partition(":")[2] or model).name, Path(device).stem]
    return "_".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)
