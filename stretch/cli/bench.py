"""`stretch bench`: time ONNX files, TFLite files and bundles in turns, and write a record that others can verify."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.inputs import InputSizes, read_inputs
from stretch.cli.output import Output, verb
from stretch.cli.pages import Html, check_html, write_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.measure.bench.compare import Request
    from scheduler.measure.bench.rounds import Effort
    from scheduler.measure.bench.subject import Asked


@verb
def bench(
    out: Output,
    what: Annotated[
        list[str] | None, typer.Argument(help="ONNX files (.onnx), TFLite files (.tflite) and folders of bundles.", show_default=False)
    ] = None,
    runtimes: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Runtime for the files: onnxruntime, openvino, opencl or litert; repeatable. Default: all installed ones except opencl.",
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(help="Number of cores for each contender, one thread per core. Default: all cores of this process.", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Measured rounds per start.", min=1, max=100_000)] = 20,
    starts: Annotated[
        int, typer.Option(help="Number of starts, each of which loads all files again; with a width, the maximum.", min=1, max=8)
    ] = 5,
    width: Annotated[
        float | None,
        typer.Option(
            help="After at least 3 starts, stop when the interval of every median is narrower than this share of it, such as 0.02."
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(help="Maximum number of warm-up rounds; they end when the times are stable.", min=0, max=100_000)
    ] = 50,
    seed: Annotated[int, typer.Option(help="Random seed of the inputs and of the order within rounds.", min=0, max=1 << 32)] = 0,
    inputs: InputSizes = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            help="Instead of measuring, verify a record: recompute its results from its times and compare the hashes of its files.",
        ),
    ] = None,
    html: Html = None,
) -> None:
    """Time ONNX files, TFLite files and bundles in turns, with confidence intervals, or verify the record of such a measurement."""
    from predictors.errors import UsageError
    from scheduler.measure.bench.rounds import Effort

    if check is not None:
        if what:
            raise UsageError("--verify checks a measurement, and files to time were named too", "do one after the other")
        if html is not None:
            raise UsageError("--verify writes no report", "leave --html out")
        _verify(out, check)
        return
    if not what:
        raise UsageError("nothing to time was named", "name .onnx files, .tflite files or folders of bundles")
    _measure(out, _request(what, runtimes or [], cores, read_shapes(inputs), Effort(rounds, starts, warmup, width), seed), html)


def read_shapes(texts: "Sequence[str] | None") -> "Asked":
    """Input shapes by name, as `scheduler.measure.bench` takes them."""
    from predictors.errors import UsageError
    from scheduler.measure.bench.subject import UNNAMED

    shapes = read_inputs(texts)
    if shapes is None:
        return {}
    if isinstance(shapes, dict):
        return shapes
    if isinstance(shapes, tuple):
        return {UNNAMED: shapes}
    raise UsageError("several sizes without names were given", "write NAME=1x3x224x224 each: files need not have the same order")


def _request(
    what: "Sequence[str]", runtimes: "Sequence[str]", cores: int | None, shapes: "Asked", effort: "Effort", seed: int
) -> "Request":
    import platform

    from scheduler.measure.bench.compare import Request
    from stretch.environment import OTHERS, processor_name, version

    versions = {"python": platform.python_version()} | {
        name: package_version for name in ("nn-stretch", *OTHERS) if (package_version := version(name))
    }
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Request(what, runtimes, cores, shapes, effort, seed, processor_name(), system, versions)


def _measure(out: Output, request: "Request", html: Path | None) -> None:
    from scheduler.measure.bench.compare import compare
    from stretch.report.bench import print_bench

    check_html(html)
    with out.progress("timing", total=request.effort.rounds * request.effort.starts) as step:
        answer = compare(request, out.warn, step)
    if html is not None:
        from stretch.report.html.bench_page import bench_page

        write_html(out, html, lambda command: bench_page(answer, command))
    out.emit(answer, lambda console: print_bench(console, answer))


def _verify(out: Output, path: Path) -> None:
    from scheduler.measure.bench.answer import check_bench
    from stretch.report.bench import print_check

    with out.progress("checking") as step:
        checked = check_bench(path, step)
    out.emit(checked, lambda console: print_check(console, checked))
    if not checked.ok:
        raise typer.Exit(1)
