"""What a network takes on each processor of a device, predicted, as plain data: JSON and the terminal's table both read these structs."""

from collections.abc import Sequence

import msgspec

from predictors.devices import DeviceProfile, Precision
from predictors.fits.fit import HeldOut
from predictors.graph import OpGraph
from predictors.models.base import Origin
from predictors.predictor import Estimate, KernelEstimate, LatencyPredictor


class PredictedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that a processor's backend launches.

    Args:
        name: Its name.
        kind: Of the operator that decides its cost.
        ops: Operators merged in it.
        macs: Multiply-accumulates.
        ms: Its time.
        launch_ms: To launch it.
        compute_ms: If it only computed.
        memory_ms: If it only moved memory.
        bound: What limits it.
        origin: ``fit``, ``relatives``, or ``roofline`` where no measured kernel was like it.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    macs: int
    ms: float
    launch_ms: float
    compute_ms: float
    memory_ms: float
    bound: str
    origin: Origin


class FitSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fitted time comes from.

    Args:
        runtime: Runtime that was measured.
        source: Measurements.
        held_out: How good fits made so are on families of networks that they have not seen.
    """

    runtime: str
    source: str
    held_out: HeldOut


class PredictedLatency(msgspec.Struct, frozen=True, kw_only=True):
    """A network on one processor.

    Args:
        latency_ms: Most likely value.
        low_ms: Lower end of the interval.
        high_ms: Upper end.
        precision: At what precision.
        calibrated: Whether this processor was fitted to measurements at this precision.
        origin: What the time is from: ``fit``, ``relatives`` or ``roofline``.
        source: Always ``predicted``.
        fixed_ms: What an inference takes beside its kernels.
        kernel_count: Kernels.
        by_roofline: Of them those that no measured kernel was like, so that they are timed by the roofline; all where nothing was fitted.
        fit: Where the times come from; None where nothing was fitted to measurements on the device.
        kernels: What the time is made of; empty where that was not asked for.
    """

    latency_ms: float
    low_ms: float
    high_ms: float
    precision: Precision
    calibrated: bool
    origin: Origin
    source: str
    fixed_ms: float
    kernel_count: int
    by_roofline: int
    fit: FitSource | None
    kernels: list[PredictedKernel]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A network on the processors of a device; the fields are the keys of `stretch predict --json`.

    Args:
        model: The network.
        device: The device's id.
        calibrated: Whether its profile was fitted to measurements.
        input: Shape of the input, with the batch.
        macs: Multiply-accumulates.
        params: Learned numbers.
        processors: The network on each processor, by its name.
        warnings: What a person should know.
    """

    model: str
    device: str
    calibrated: bool
    input: tuple[int, ...]
    macs: int
    params: int
    processors: dict[str, PredictedLatency]
    warnings: list[str]


def predict_latency(
    model: str,
    graph: OpGraph,
    profile: DeviceProfile,
    processors: Sequence[str],
    precision: str | None = None,
    *,
    kernels: bool = False,
    warnings: list[str],
) -> Prediction:
    """Predict a network on some processors of a device.

    Args:
        model: The network's name.
        graph: Its operators.
        profile: Of the device.
        processors: Such as ``gpu`` or ``cpu[1large]``.
        precision: None for each processor's default.
        kernels: Whether every kernel is wanted.
        warnings: For the result.

    Raises:
        UnknownNameError: If the device has no such processor.
        UsageError: If a processor does not run the precision.
    """
    predictor = LatencyPredictor(profile)
    return Prediction(
        model=model,
        device=profile.id,
        calibrated=profile.calibrated,
        input=graph.inputs[0].shape,
        macs=graph.macs,
        params=graph.params,
        processors={name: _latency(predictor.predict(graph, name, precision), profile, kernels) for name in processors},
        warnings=warnings,
    )


def _latency(estimate: Estimate, profile: DeviceProfile, kernels: bool) -> PredictedLatency:
    fit = profile.processor(estimate.processor).fits.get(estimate.precision)
    return PredictedLatency(
        latency_ms=estimate.ms,
        low_ms=estimate.low_ms,
        high_ms=estimate.high_ms,
        precision=estimate.precision,
        calibrated=estimate.calibrated,
        origin=estimate.origin,
        source=estimate.source,
        fixed_ms=estimate.fixed_ms,
        kernel_count=len(estimate.kernels),
        by_roofline=sum(each.time.origin == "roofline" for each in estimate.kernels),
        fit=FitSource(runtime=fit.runtime, source=fit.source, held_out=fit.held_out) if fit else None,
        kernels=[_kernel(each) for each in estimate.kernels] if kernels else [],
    )


def _kernel(each: KernelEstimate) -> PredictedKernel:
    return PredictedKernel(
        name=each.kernel.name,
        kind=each.kernel.cost.kind,
        ops=each.kernel.ops,
        macs=each.kernel.macs,
        ms=each.time.ms,
        launch_ms=each.time.launch_ms,
        compute_ms=each.time.compute_ms,
        memory_ms=each.time.memory_ms,
        bound="the CPU" if each.kernel.elsewhere else each.time.bound,
        origin=each.time.origin,
    )


class PredictedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One network on one processor of one device, in a table of many.

    Args:
        model: The network.
        device: The device's id.
        processor: Where.
        precision: At what precision.
        macs: Multiply-accumulates.
        latency_ms: Most likely value.
        low_ms: Lower end of the interval.
        high_ms: Upper end.
        calibrated: Whether this processor was fitted to measurements at this precision.
        origin: What the time is from: ``fit``, ``relatives`` or ``roofline``.
    """

    model: str
    device: str
    processor: str
    precision: Precision
    macs: int
    latency_ms: float
    low_ms: float
    high_ms: float
    calibrated: bool
    origin: Origin


class Unpredicted(msgspec.Struct, frozen=True, kw_only=True):
    """A network that no graph could be had of.

    Args:
        model: The network.
        reason: Why.
    """

    model: str
    reason: str


class PredictionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Many networks on many devices; the fields are the keys of `stretch predict --json` with wildcards.

    Args:
        items: Each network on each processor of each device.
        failed: Networks without a graph.
        warnings: What a person should know.
    """

    items: list[PredictedRow]
    failed: list[Unpredicted]
    warnings: list[str]


def predicted_rows(model: str, graph: OpGraph, places: Sequence[tuple[LatencyPredictor, str, str | None]]) -> list[PredictedRow]:
    """One network in many places.

    Args:
        model: Its name.
        graph: Its operators.
        places: Predictor of a device, processor, and precision or None for the default.
    """
    rows = []
    for predictor, processor, precision in places:
        estimate = predictor.predict(graph, processor, precision)
        rows.append(
            PredictedRow(
                model=model,
                device=predictor.device.id,
                processor=processor,
                precision=estimate.precision,
                macs=graph.macs,
                latency_ms=estimate.ms,
                low_ms=estimate.low_ms,
                high_ms=estimate.high_ms,
                calibrated=estimate.calibrated,
                origin=estimate.origin,
            )
        )
    return rows
