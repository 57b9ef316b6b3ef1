"""`stretch bench`: any ONNX and TFLite files and bundles, timed in turns, in a record that others can check."""

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
            help="Runtime of files: onnxruntime, openvino, opencl or litert; repeat. By default each that is installed, opencl only if named.",
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(help="Cores that each may use, a thread on each; all of this process by default.", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each start that count.", min=1, max=100_000)] = 20,
    starts: Annotated[int, typer.Option(help="How often everything is loaded anew; at most so often with a width.", min=1, max=8)] = 5,
    width: Annotated[
        float | None, typer.Option(help="Stop after 3 starts or more once each median is known to this share of itself, as 0.02.")
    ] = None,
    warmup: Annotated[
        int, typer.Option(help="Rounds before those that count, at most: they end once times hold.", min=0, max=100_000)
    ] = 50,
    seed: Annotated[int, typer.Option(help="Of the inputs' numbers and of the order in each round.", min=0, max=1 << 32)] = 0,
    inputs: InputSizes = None,
    check: Annotated[
        Path | None,
        typer.Option("--verify", help="Check a measurement instead: compute it again from its times, compare its files' hashes."),
    ] = None,
    html: Html = None,
) -> None:
    """Time any ONNX and TFLite files and bundles in turns, with intervals, and check such measurements of others."""
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
    _measure(out, _request(what, runtimes or [], cores, read_asked(inputs), Effort(rounds, starts, warmup, width), seed), html)


def read_asked(texts: "Sequence[str] | None") -> "Asked":
    """Shapes of inputs by name, as `scheduler.measure.bench` takes them."""
    from predictors.errors import UsageError
    from scheduler.measure.bench.subject import UNNAMED

    found = read_inputs(texts)
    if found is None:
        return {}
    if isinstance(found, dict):
        return found
    if isinstance(found, tuple):
        return {UNNAMED: found}
    raise UsageError("several sizes without names were given", "write NAME=1x3x224x224 each: files need not have the same order")


def _request(what: "Sequence[str]", runtimes: "Sequence[str]", cores: int | None, asked: "Asked", effort: "Effort", seed: int) -> "Request":
    import platform

    from scheduler.measure.bench.compare import Request
    from stretch.environment import OTHERS, processor_name, version

    versions = {"python": platform.python_version()} | {name: found for name in ("nn-stretch", *OTHERS) if (found := version(name))}
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Request(what, runtimes, cores, asked, effort, seed, processor_name(), system, versions)


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
    from scheduler.measure.bench.check import check_bench
    from stretch.report.bench import print_check

    with out.progress("checking") as step:
        found = check_bench(path, step)
    out.emit(found, lambda console: print_check(console, found))
    if not found.ok:
        raise typer.Exit(1)
