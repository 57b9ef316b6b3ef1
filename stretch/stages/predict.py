"""Predicted latency of a network on each processor of a device, as records for the JSON and the terminal's table."""

from collections.abc import Mapping, Sequence

import msgspec

from predictors.devices import DeviceProfile, Precision
from predictors.fits import HeldOut
from predictors.graph import OpGraph
from predictors.models.roofline import Origin
from predictors.predictor import Estimate, KernelEstimate, LatencyPredictor


class PredictedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that a processor's backend launches."""

    name: str  # Name of the kernel.
    kind: str  # Kind of the main operator, which determines the cost of the kernel.
    ops: tuple[str, ...]  # Names of the operators.
    macs: int  # Multiply-accumulates.
    ms: float  # Predicted time.
    launch_ms: float  # Launch time.
    compute_ms: float  # Time of computation alone.
    memory_ms: float  # Time of memory traffic alone.
    bound: str  # Limit of the time: compute, memory or launches.
    origin: Origin  # Source of the time: ``fit``, ``relatives``, or ``roofline`` if no measured kernel is similar.


class FitSource(msgspec.Struct, frozen=True, kw_only=True):
    """Source of a fitted time."""

    runtime: str  # Name of the measured runtime.
    source: str  # Source of the measurements.
    held_out: HeldOut  # Errors of fits by the same method on unseen families of networks.


class PredictedLatency(msgspec.Struct, frozen=True, kw_only=True):
    """A network on one processor."""

    latency_ms: float  # Most likely value.
    low_ms: float  # Lower end of the interval.
    high_ms: float  # Upper end.
    precision: Precision  # Precision of the prediction.
    optional: bool  # Whether plans only use the processor on request.
    calibrated: bool  # Whether this processor was fitted to measurements at this precision.
    origin: Origin  # Source of the time: ``fit``, ``relatives`` or ``roofline``.
    source: str  # Always ``predicted``.
    handover_ms: float  # Time per inference in addition to kernels: a measured constant, or the transfers of input and output.
    kernel_count: int  # Number of kernels.
    #: Number of kernels without a similar measured kernel, which the roofline predicts; all without a fit.
    by_roofline: int
    fit: FitSource | None  # Source of the times; None without a fit to measurements on the device.
    kernels: list[PredictedKernel]  # Time by kernel; empty without a request.


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction for a network on the processors of a device; the fields are the keys of `stretch predict --json`."""

    model: str  # The network.
    device: str  # The device's id.
    calibrated: bool  # Whether its profile was fitted to measurements.
    input: tuple[int, ...]  # Shape of the input, with the batch.
    macs: int  # Multiply-accumulates.
    params: int  # Learned numbers.
    processors: dict[str, PredictedLatency]  # Predicted latency, by processor.
    warnings: list[str]  # Warnings for the user.


def by_latency(processors: Mapping[str, PredictedLatency]) -> list[tuple[str, PredictedLatency]]:
    """Return the processors with their times, the fastest first; optional processors come last."""
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
    """Predict the latency of a network on some processors of a device.

    Args:
        processors: Names of processors, such as ``gpu`` or ``cpu[1large]``.
        precision: Precision of all processors; each processor's default if None.
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
    processor: str  # Name of the processor.
    precision: Precision  # Precision of the prediction.
    macs: int  # Multiply-accumulates.
    latency_ms: float  # Most likely value.
    low_ms: float  # Lower end of the interval.
    high_ms: float  # Upper end.
    calibrated: bool  # Whether this processor was fitted to measurements at this precision.
    origin: Origin  # Source of the time: ``fit``, ``relatives`` or ``roofline``.


class Unpredicted(msgspec.Struct, frozen=True, kw_only=True):
    """A network whose graph could not be read."""

    model: str  # The network.
    reason: str  # Reason.


class PredictionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions for many networks on many devices; the fields are the keys of `stretch predict --json` with wildcards."""

    items: list[PredictedRow]  # One row per network, device and processor.
    failed: list[Unpredicted]  # Networks without a graph.
    warnings: list[str]  # Warnings for the user.
