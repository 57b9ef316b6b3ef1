"""What `stretch run --adb` tells, as structs; the fields are the keys of its JSON."""

import msgspec

#: Said with every result and on every page about phones.
UNTESTED = "the way over adb was not tried on a phone yet: compare its first times with those of another tool"


class SignatureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A signature on a processor of the phone.

    Args:
        signature: Its name.
        processor: As the profile names it, with its core set.
        precision: That the processor computed in.
        ms: Mean time of a run; None where it did not run there as a whole.
        std_ms: Standard deviation; None where it is not known.
        kernels: How many of its kernels have a time of their own.
        reason: Why it has no time; None if it has one.
    """

    signature: str
    processor: str
    precision: str
    ms: float | None
    std_ms: float | None
    kernels: int
    reason: str | None


class RunnerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the C++ runner took on the phone, its branches side by side.

    Args:
        median_ms: Of an inference.
        runs: Inferences.
        max_error: Largest difference of its outputs from the whole fp32 model's here, as a share of the largest output.
        on_cpu: Steps of which operators stayed on the CPU though an accelerator was to run them.
        trace: File with its timeline; None if none was asked for.
    """

    median_ms: float
    runs: int
    max_error: float
    on_cpu: list[str]
    trace: str | None


class PhoneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Args:
        serial: Of the phone.
        phone: What it calls itself, as it stands in the measurements.
        system: Its system.
        model: Name of the bundle's model.
        device: Profile that it was planned for.
        profile: That times are named after.
        measurements: Folder that the times went to; None where there are none.
        signatures: Each on each processor.
        runner: None if it did not run.
        source: Where the figures come from.
        tested: Whether this way was tried on a phone.
        warnings: What a person should know.
    """

    serial: str
    phone: str
    system: str
    model: str
    device: str
    profile: str
    measurements: str | None
    signatures: list[SignatureRow]
    runner: RunnerRow | None
    source: str = "measured"
    tested: bool = False
    warnings: list[str]
