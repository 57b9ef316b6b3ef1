"""`stretch explain --runtime`: placement of the operators of a file by a runtime."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from predictors.errors import UsageError
from stretch.cli.extensions import extends
from stretch.cli.output import Output


def _complete_runtime(start: str) -> list[str]:
    from scheduler.tools.explain.runtimes import RUNTIMES

    return [name for name in RUNTIMES if name.startswith(start)]


@extends("explain")
@dataclass(frozen=True)
class FileExplanation:
    """Options for a file on a runtime in place of a bundle."""

    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime",
            help="Show how this runtime places a file: onnxruntime, qnn, openvino, litert or opencl.",
            autocompletion=_complete_runtime,
        ),
    ] = None
    fix: Annotated[
        Path | None, typer.Option("--fix", help="Write the ONNX file with all changes that improve its placement and preserve its results.")
    ] = None

    def asked(self) -> bool:
        """Return whether the options name a runtime."""
        if self.runtime is None and self.fix is not None:
            raise UsageError("--fix changes a file for a runtime, but no runtime is named", "add --runtime onnxruntime, or another")
        return self.runtime is not None

    def explain(self, out: Output, file: str, device: str | None, mapping: Mapping[str, str]) -> None:
        """Get the placement from the runtime, and try changes of the file that may improve it."""
        from scheduler.tools.explain import explain_file, fix_file
        from stretch.tools.explain.report import runtime_page

        assert self.runtime is not None
        if mapping:
            raise UsageError("--map places the processors of a bundle, --runtime explains a file", "give one of the two")
        with out.progress("explaining"):
            explanation = explain_file(Path(file), self.runtime, device)
            answer = fix_file(explanation, self.runtime, device, self.fix)
        out.show(answer, runtime_page)
