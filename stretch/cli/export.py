"""`stretch export`: a bundle in other precisions, as TFLite, DSP code, torch or C++ code; or a design of a trained run."""

from pathlib import Path
from typing import Annotated, Any

from stretch.api.exporters import exporter_of
from stretch.api.exporting import ExportFolder, ExportForm, ExportSource, export_options
from stretch.api.exporting import export as export_source
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.options import OptionsOf
from stretch.cli.output import Output, only_flags

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


def export(
    out: Output,
    source: ExportSource,
    options: Annotated[dict[str, Any], OptionsOf(lambda: export_options().values(), dict)],
    folder: ExportFolder = None,
    form: ExportForm = "onnx",
) -> None:
    """Write a bundle in int8 or fp16, as TFLite, DSP code, torch code or C++."""
    exporter = exporter_of(Path(source), form, options)
    settings_taken = "change config_file" if "preprocessing" in exporter.options else ""
    accepted = " ".join(("source folder form", settings_taken, *exporter.options))
    only_flags(exporter.called or f"--as {form}", accepted, exporter.hint)
    with out.progress("exporting") as progress:
        answer = export_source(source, folder, form, progress=progress, **options)
    out.show(answer, exporter.page)
