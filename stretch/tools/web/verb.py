"""`stretch web`: bundles in a browser, and a profile of the browser's processors."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from predictors.errors import StretchError, UsageError, install_line
from stretch.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.tools.web.server import BrowserAnswer

#: Network of the demo, with 5 MB of weights, and a phone whose CPU and GPU are equally fast for it, so that its designs have branches.
DEMO, DEMO_DEVICE = "squeezenet1_1", "a03s"
#: Kinds of the demo's designs, by their names on the page; the whole network is among the baselines of each.
DEMO_KINDS = {"exact branches": ("rows",), "stretched branches": ("stretch",)}


class WebAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The page's report; the fields are the keys of `stretch web --json`."""

    address: str  # Address in the browser.
    bundles: "list[BrowserAnswer]"  # Each bundle that ran in the browser.
    profile: str | None  # File of the profile; None if none was measured.
    mean_error: dict[str, float]  # Mean error of the profile's fits on held-out networks, by processor and core set.
    warnings: list[str]  # Warnings for the user.


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `stretch web`."""

    bundles: Annotated[list[Path] | None, typer.Argument(help="Folders of bundles.", show_default=False)] = None
    demo: Annotated[bool, typer.Option("--demo", help="Make a small network's exact and stretched branches, and run them.")] = False
    profile: Annotated[str | None, typer.Option(help="Id of a profile of the browser's device, which the page measures first.")] = None
    budget: Annotated[float, typer.Option(help="Minutes for the networks of a profile.", min=0.05, max=60)] = 2.0
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder of the profile.")] = Path()
    host: Annotated[
        str, typer.Option(help="Address to listen at: 0.0.0.0 for the local network, by https with a certificate of its own.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port. Default: one that is free.", min=0, max=65535, show_default=False)] = 0
    runtime: Annotated[
        Path | None, typer.Option(help="ONNX Runtime Web as `npm pack` gives it. Default: npm downloads it once.", show_default=False)
    ] = None
    record: Annotated[Path | None, typer.Option(help="Write what the page's state machine did to this file, as JSON lines.")] = None


def web(out: Output, options: WebOptions) -> None:
    """Run bundles in a browser, for example on a phone, and measure a profile there."""
    from scheduler.bundle.load import load_bundle
    from scheduler.tools.web.server import PageBundle, PageServer, runtime_folder

    profile, folder = options.profile, options.folder
    if not options.bundles and not options.demo and profile is None:
        raise UsageError("there is nothing to show", "give the folder of a bundle, --demo, or --profile NAME")
    with out.progress("ONNX Runtime Web"):
        files = runtime_folder(options.runtime)
    measurer = None
    if profile is not None:
        from stretch.profile.run import check_target
        from stretch.tools.web.browser import BrowserMeasurer

        check_target(profile, folder)
        if (folder / f"{profile}.measurements").exists():
            raise StretchError(f"{folder / profile}.measurements exists already", "choose another --profile or --out")
        measurer = BrowserMeasurer(profile, folder, 60 * options.budget, out.warn)
    titled = {path.name: path for path in options.bundles or ()}
    if options.demo:
        titled |= _demo(out)
    with out.progress("computing the expected results"):
        shown = [
            PageBundle(f"b{number}", title, load_bundle(path, check_hashes=True)) for number, (title, path) in enumerate(titled.items())
        ]
    with PageServer(shown, files, options.host, options.port, measurer, out.note) as server:
        out.note(f"open {server.address}")
        _show_code(out, server.address)
        while not server.ended.wait(0.2):
            pass
    if options.record is not None:
        options.record.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in server.lines))
    from stretch.profile.run import held_out

    errors = {f"{item.processor}[{item.core_set}]": held_out(item).mape for item in measurer.fits} if measurer else {}
    written = str(folder / f"{profile}.toml") if errors else None
    answer = WebAnswer(address=server.address, bundles=server.answers, profile=written, mean_error=errors, warnings=out.warnings)
    out.emit(answer, lambda console: _show(console, answer))


def _demo(out: Output) -> dict[str, Path]:
    """Return the bundles of the demo, which are created once and cached."""
    from predictors.files import cache_folder
    from stretch import __version__

    paths = {}
    for title, kinds in DEMO_KINDS.items():
        path = paths[title] = cache_folder("web-demo") / f"{DEMO}-{DEMO_DEVICE}-{kinds[0]}-{__version__}"
        if not (path / "bundle.json").exists():
            import stretch

            with out.progress(f"making {title} of {DEMO}"):
                path.parent.mkdir(parents=True, exist_ok=True)
                stretch.branch(DEMO, DEMO_DEVICE, processors=("cpu", "gpu"), kinds=kinds, weights="none", out=path)
    return paths


def _show_code(out: Output, address: str) -> None:
    """Show the address as a QR code for a phone's camera, if a person reads the terminal."""
    if out.quiet or not sys.stderr.isatty():
        return
    try:
        import segno
    except ImportError:
        out.note(f"the package segno draws the address as a QR code: {install_line('web')}")
        return
    segno.make(address).terminal(out=sys.stderr, compact=True)


def _show(console: "Console", answer: WebAnswer) -> None:
    for item in answer.bundles:
        console.print(f"{item.bundle}:", soft_wrap=True)
        for sentence in item.sentences:
            console.print(f"  {sentence}", soft_wrap=True)
        if item.predicted_ms is not None:
            ratio = item.median_ms["branches"] / item.predicted_ms
            console.print(f"  planned for its device with {item.predicted_ms:.4g} ms: measured {ratio:.3g} times that", soft_wrap=True)
    for name, error in answer.mean_error.items():
        console.print(f"{name}: mean error {error:.0%} on networks left out")
    if answer.profile is not None:
        console.print(f"written: {answer.profile}; plan for it with --device {answer.profile}", soft_wrap=True)
