"""Predicted latency of a network on each processor of a device, as plain data for the JSON and the terminal's table."""

from collections.abc import Mapping, Sequence

import msgspec

from predictors.devices import DeviceProfile, Precision
from predictors.fits import HeldOut
from predictors.graph import OpGraph
from predictors.models.roofline import Origin
from predictors.predictor import Estimate, KernelEstimate, LatencyPredictor


class PredictedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that a processor's backend launches."""

    name: str  # Its name.
    kind: str  # Of the operator that decides its cost.
    ops: tuple[str, ...]  # Operators merged in it.
    macs: int  # Multiply-accumulates.
    ms: float  # Its time.
    launch_ms: float  # To launch it.
    compute_ms: float  # If it only computed.
    memory_ms: float  # If it only moved memory.
    bound: str  # Its limit: compute, memory or launches.
    origin: Origin  # ``fit``, ``relatives``, or ``roofline`` where no measured kernel was like it.


class FitSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fitted time comes from."""

    runtime: str  # Runtime that was measured.
    source: str  # Measurements.
    held_out: HeldOut  # How good fits made so are on families of networks that they have not seen.


class PredictedLatency(msgspec.Struct, frozen=True, kw_only=True):
    """A network on one processor."""

    latency_ms: float  # Most likely value.
    low_ms: float  # Lower end of the interval.
    high_ms: float  # Upper end.
    precision: Precision  # At what precision.
    optional: bool  # Whether plans use the processor only where it is named.
    calibrated: bool  # Whether this processor was fitted to measurements at this precision.
    origin: Origin  # Source of the time: ``fit``, ``relatives`` or ``roofline``.
    source: str  # Always ``predicted``.
    handover_ms: float  # Time of an inference in addition to its kernels: a measured constant, or the transfers of its input and output.
    kernel_count: int  # Kernels.
    #: Kernels among them without a similar measured kernel, which the roofline times; all where there is no fit.
    by_roofline: int
    fit: FitSource | None  # Where the times come from; None where nothing was fitted to measurements on the device.
    kernels: list[PredictedKernel]  # Parts of the time; empty where they were not asked for.


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A network on the processors of a device; the fields are the keys of `stretch predict --json`."""

    model: str  # The network.
    device: str  # The device's id.
    calibrated: bool  # Whether its profile was fitted to measurements.
    input: tuple[int, ...]  # Shape of the input, with the batch.
    macs: int  # Multiply-accumulates.
    params: int  # Learned numbers.
    processors: dict[str, PredictedLatency]  # The network on each processor, by its name.
    warnings: list[str]  # Warnings for the user.


def by_latency(processors: Mapping[str, PredictedLatency]) -> list[tuple[str, PredictedLatency]]:
    """Return the processors with their times, the fastest first; those that plans use only where they are named come last."""
    return sorted(processors.items(), key=lambda item: (item[1].optional, item[1].latency_ms))


def predict_latency(
    model: str,
    graph: OpGraph,
    profile: DeviceProfile,
    processors: Sequence[str],
    precision: str | None = None,
    *,
    kernels: bool = False,
    warnings: Sequence[str] = (),
) -> Prediction:
    """Predict a network on some processors of a device.

    Args:
        processors: Such as ``gpu`` or ``cpu[1large]``.
        precision: None for each processor's default.
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
        warnings=list(warnings),
    )


def _latency(estimate: Estimate, profile: DeviceProfile, kernels: bool) -> PredictedLatency:
    processor = profile.processor(estimate.processor)
    fit = processor.fits.get(estimate.precision)
    return PredictedLatency(
        latency_ms=estimate.ms,
        low_ms=estimate.low_ms,
        high_ms=estimate.high_ms,
        precision=estimate.precision,
        optional=processor.profile.optional,
        calibrated=estimate.calibrated,
        origin=estimate.origin,
        source=estimate.source,
        handover_ms=estimate.handover_ms,
        kernel_count=len(estimate.kernels),
        by_roofline=sum(kernel.time.origin == "roofline" for kernel in estimate.kernels),
        fit=FitSource(runtime=fit.runtime, source=fit.source, held_out=fit.held_out) if fit else None,
        kernels=[_kernel(kernel) for kernel in estimate.kernels] if kernels else [],
    )


def _kernel(estimate: KernelEstimate) -> PredictedKernel:
    kernel, spent = estimate.kernel, estimate.time
    return PredictedKernel(
        name=kernel.name,
        kind=kernel.cost.kind,
        ops=kernel.ops,
        macs=kernel.macs,
        ms=spent.ms,
        launch_ms=spent.launch_ms,
        compute_ms=spent.compute_ms,
        memory_ms=spent.memory_ms,
        bound="the CPU" if kernel.elsewhere else spent.bound,
        origin=spent.origin,
    )


class PredictedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One network on one processor of one device, in a table of many."""

    model: str  # The network.
    device: str  # The device's id.
    processor: str  # Where.
    precision: Precision  # At what precision.
    macs: int  # Multiply-accumulates.
    latency_ms: float  # Most likely value.
    low_ms: float  # Lower end of the interval.
    high_ms: float  # Upper end.
    calibrated: bool  # Whether this processor was fitted to measurements at this precision.
    origin: Origin  # Source of the time: ``fit``, ``relatives`` or ``roofline``.


class Unpredicted(msgspec.Struct, frozen=True, kw_only=True):
    """A network that no graph could be had of."""

    model: str  # The network.
    reason: str  # Why.


class PredictionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Many networks on many devices; the fields are the keys of `stretch predict --json` with wildcards."""

    items: list[PredictedRow]  # Each network on each processor of each device.
    failed: list[Unpredicted]  # Networks without a graph.
    warnings: list[str]  # Warnings for the user.
