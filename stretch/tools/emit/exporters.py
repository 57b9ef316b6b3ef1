"""`stretch export --as code`: a package of torch code, from a bundle or a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.progress import Progress
from stretch.api.exporters.base import Exporter, TrustCode, exporters, written_page
from stretch.api.parameters import InputShape
from stretch.report.html.page import Page

if TYPE_CHECKING:
    from stretch.tools.emit.package import EmitAnswer


def _write(
    source: str,
    out: Path,
    *,
    weights: Annotated[str, typer.Option(help="Of a model: default, none, or a .safetensors or .pth file.")] = "default",
    input_shape: InputShape = None,
    seed: Annotated[int, typer.Option(help="Of a model: seed of random weights.")] = 0,
    trust_code: TrustCode = False,
    progress: Progress,
) -> "EmitAnswer":
    from stretch.tools.emit.package import emit

    return emit(source, out, input_shape, weights=weights, seed=seed, trust_code=trust_code)


def _page(answer: "EmitAnswer") -> Page:
    subject = f"{answer.network} in {answer.segments} segments" if answer.branched else answer.network
    lines = [f"{subject}: {len(answer.files)} files, outputs differ by {answer.max_error:.1e} of the largest"]
    return written_page((), (), [*lines, f"from {answer.package.name} import load  # in {answer.package.absolute().parent}"])


exporters.register("code")(
    Exporter("readable torch code, a class a branch, which runs, trains and exports without nn-stretch", _write, _page)
)
