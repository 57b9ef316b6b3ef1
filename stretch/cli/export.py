"""`stretch export`: a bundle in other precisions, as TFLite, DSP code, torch or C++ code; or a design of a trained run."""

from pathlib import Path

from stretch.api.exporters import exporter_of
from stretch.api.exporting import export as export_source
from stretch.cli.interrupt import WRITER_GRACE_S
from stretch.cli.options import Call, calls, settings
from stretch.cli.output import Output, only_flags, verb

#: Seconds after Ctrl-C for removing unfinished files.
GRACE_S = WRITER_GRACE_S


@verb
@settings()
@calls(export_source)
def export(out: Output, run: Call) -> None:
    """Write a bundle in int8 or fp16, as TFLite, DSP code, torch code or C++."""
    request = run.keywords
    exporter = exporter_of(Path(request["source"]), request["form"], request)
    settings_taken = "change config_file" if "preprocessing" in exporter.options else ""
    taken = " ".join(("source folder form", settings_taken, *exporter.options))
    only_flags(exporter.called or f"--as {request['form']}", taken, exporter.hint)
    with out.progress("exporting") as progress:
        answer = run(progress=progress)
    out.show(answer, exporter.page)
