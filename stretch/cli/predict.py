"""`stretch predict`: predict the latency of a model on each processor of a device, without the device."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictors.devices import is_pattern, load_devices
from predictors.errors import UsageError
from predictors.models.roofline import ORIGINS, Origin
from stretch.api.parameters import complete_model, device_option, input_words
from stretch.api.verbs import PredictOptions, processors_to_predict
from stretch.api.verbs import predict as predict_model
from stretch.cli.output import Output
from stretch.cli.pages import Html, check_picture
from stretch.planning.messages import command_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from predictors.devices import DeviceProfile
    from predictors.graph import OpGraph
    from predictors.predictor import Estimate
    from stretch.stages.network import ReadGraph
    from stretch.stages.predict import PredictedRow


def predict(
    out: Output,
    model: Annotated[
        str,
        typer.Argument(
            help="A name of `stretch list models`, a wildcard pattern such as 'resnet*', package.module:factory, file.py:factory or an .onnx, .pt2 or .tflite file.",
            autocompletion=complete_model,
        ),
    ],
    device: Annotated[
        str,
        device_option(
            "Profile id (see `stretch list devices`), a wildcard pattern such as '*', TOML file, or several of these with commas."
        ),
    ],
    options: PredictOptions,
    kernels: Annotated[bool, typer.Option("--kernels", help="List every kernel.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Plot the kernels of one processor and its roofline into this .svg or .png file.")
    ] = None,
    html: Html = None,
) -> None:
    """Predict the latency of a model per processor and per kernel."""
    # check names before the slow import of torch, so that a misspelt name fails early
    processor, precision = options.processor, options.precision
    profiles = load_devices(device)
    if len(profiles) > 1 or is_pattern(model):
        if kernels or plot is not None or html is not None:
            raise UsageError("--kernels, --plot and --html are of one model on one device", "name both without wildcards")
        where = [(profile, processors_to_predict(profile, processor, precision, all_precisions=False)) for profile in profiles]
        _predict_many(out, model, where, precision, options.read)
        return
    [profile] = profiles
    names = processors_to_predict(profile, processor, precision)
    if plot is not None:
        check_picture(plot, names)
    from msgspec.structs import replace

    from predictors.predictor import LatencyPredictor
    from stretch.stages.predict import by_latency

    with out.progress("capturing"):
        network = options.read(model)
    graph = network.graph
    out.tell_size(options.input_shape, graph)
    prediction = predict_model(network, profile, options, kernels=kernels or html is not None)
    from stretch.report.prediction import prediction_page, roofline_figure, write_figure

    def roofline(name: str, at: str | None) -> "tuple[str, Figure]":
        return roofline_figure(graph.name, LatencyPredictor(profile).predict(graph, name, at), profile, name)

    if plot is not None:
        write_figure(roofline(names[0], precision)[1], plot)
    best, row = by_latency(prediction.processors)[0]

    drawn = partial(roofline, best, row.precision) if html is not None else None
    bare = {name: replace(row, kernels=[]) for name, row in prediction.processors.items()}
    shown = prediction if kernels else replace(prediction, processors=bare)
    out.details |= kernels
    trusted = ["--trust-code"] if options.trust_code else []
    following = command_line("advise", model, *input_words(options.input_shape), *trusted, "--device", device)
    out.show(shown, lambda _: prediction_page(prediction, drawn, list_kernels=kernels, following=following), html)


def _predict_many(
    out: Output,
    pattern: str,
    places: "list[tuple[DeviceProfile, list[str]]]",
    precision: str | None,
    read: "Callable[[str], ReadGraph]",
) -> None:
    """Predict every matching model on every processor, and show one row each."""
    from predictors.errors import StretchError, UnknownNameError
    from predictors.predictor import LatencyPredictor
    from stretch.network.models import model_names
    from stretch.report.prediction import predictions_page
    from stretch.stages.predict import PredictionTable, Unpredicted

    models = [name for name, _ in model_names(pattern)] if is_pattern(pattern) else [pattern]
    if not models:
        raise UnknownNameError.among("model", pattern, [name for name, _ in model_names()])
    predictors = [(LatencyPredictor(profile), names) for profile, names in places]
    rows: list[PredictedRow] = []
    failed = []
    with out.progress("predicting", len(models)) as done:
        for model in models:
            try:
                graph = read(model).graph
            except StretchError as error:
                if not is_pattern(pattern):
                    raise
                failed.append(Unpredicted(model=model, reason=error.message))
            else:
                for predictor, names in predictors:
                    rows += [_row(model, predictor.device.id, graph, predictor.predict(graph, name, precision)) for name in names]
            done()
    not_measured: tuple[Origin, ...] = ("sibling", "similar", "relatives", "roofline")
    for origin in not_measured:
        guessed = sorted({f"{row.processor} of {row.device}" for row in rows if row.origin == origin})
        if guessed:
            out.warn(f"not fitted to measurements of the processor, but derived from {ORIGINS[origin]}: {', '.join(guessed)}")
    table = PredictionTable(items=rows, failed=failed, warnings=out.warnings)
    out.show(table, predictions_page)


def _row(model: str, device: str, graph: "OpGraph", estimate: "Estimate") -> "PredictedRow":
    from stretch.stages.predict import PredictedRow

    return PredictedRow(
        model=model,
        device=device,
        processor=estimate.processor,
        precision=estimate.precision,
        macs=graph.macs,
        latency_ms=estimate.ms,
        low_ms=estimate.low_ms,
        high_ms=estimate.high_ms,
        calibrated=estimate.calibrated,
        origin=estimate.origin,
    )
