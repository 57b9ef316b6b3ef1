"""`stretch.api.export`: a bundle, a model or a trained run in another form."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from predictors.errors import UsageError
from scheduler.progress import Progress, silent
from stretch.api.exporters import exporter_of, exporters, named_forms
from stretch.api.exporters.run import RUN_FILE
from stretch.api.parameters import Parsed

#: Names of forms for `--as`.
FORMATS = named_forms()


ExportSource = Annotated[
    str | Path,
    typer.Argument(
        metavar="BUNDLE_OR_RUN",
        help="Folder of an fp32 bundle; any bundle with --as tflite, one with int8 dsp subgraphs with --as qnn, one with a TFLite file "
        "with --as cpp. Or the folder of a run that `stretch train` wrote. With --as code also a model: a name of `stretch list models`, "
        "package.module:factory, file.py:factory or a model file.",
    ),
    Parsed(str, str),
]
ExportFolder = Annotated[
    str | Path | None,
    typer.Option("--out", "-o", help="Folder of the written files; new for code and cpp. Default: RUN/extracted for a run."),
]
ExportForm = Annotated[
    str,
    typer.Option(
        "--as",
        "--format",
        metavar=f"[{'|'.join(FORMATS)}]",
        help="; ".join(f"{name}: {exporters.get(name).summary}" for name in FORMATS) + ".",
    ),
]


def export_options() -> dict[str, inspect.Parameter]:
    """Return the options of all forms, by name."""
    return {name: option for form in (*FORMATS, *exporters) for name, option in exporters.get(form).options.items()}


def export(
    source: ExportSource, out: ExportFolder = None, form: ExportForm = "onnx", *, progress: Progress | None = None, **options: Any
) -> msgspec.Struct:
    """Write a bundle in another form, or a design of a trained run, and compare it with the original.

    Args:
        progress: Called with a short name of each next step.
        options: Options of the form, named as the flags of `stretch export`, such as ``min_cosine=0.98``.

    Returns:
        The form's answer on the written files; its fields are the keys of `--json`.

    Raises:
        StretchError: Or a subclass: no bundle, int8 without images, a failed comparison, no folder to write to.
    """
    if unknown := options.keys() - export_options().keys():
        raise TypeError(f"export() got an unexpected keyword argument {min(unknown)!r}")
    run = (Path(source) / RUN_FILE).is_file()
    if run and form != "onnx":
        raise UsageError(f"the run {source} is no bundle that could be written as {form}", "export the run first, then its bundle")
    if form != "code" and not Path(source).exists():
        raise UsageError(f"{source} does not exist", "make a bundle with `stretch branch MODEL --device DEVICE --out FOLDER`")
    if out is None and not run:
        raise UsageError("nothing says where to write", "name a folder with --out")
    exporter = exporter_of(Path(source), form, options)
    form_options = {name: value for name, value in options.items() if name in exporter.options}
    written: msgspec.Struct = exporter.write(str(source), None if out is None else Path(out), progress=progress or silent, **form_options)
    return written
