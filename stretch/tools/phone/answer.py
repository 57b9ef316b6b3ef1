"""Answer of `stretch run --adb`; the fields are the keys of its JSON."""

import msgspec

#: Said with every result and on every page about phones.
UNTESTED = "the way over adb was not tried on a phone yet: compare its first times with those of another tool"


class SignatureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A signature on a processor of the phone."""

    signature: str  # Its name.
    processor: str  # As the profile names it, with its core set.
    precision: str  # That the processor computed in.
    ms: float | None  # Mean time of a run; None where it did not run there as a whole.
    std_ms: float | None  # Standard deviation; None where it is not known.
    kernels: int  # Number of its kernels with a measured time.
    reason: str | None  # Why it has no time; None if it has one.


class RunnerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the C++ runner took on the phone, its branches side by side."""

    median_ms: float  # Of an inference.
    runs: int  # Inferences.
    max_error: float  # Largest difference of its outputs from the whole fp32 model's here, as a share of the largest output.
    on_cpu: list[str]  # Steps of which operators stayed on the CPU though an accelerator was to run them.
    trace: str | None  # File with its timeline; None if not requested.


class PhoneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    serial: str  # Of the phone.
    phone: str  # What it calls itself, as it stands in the measurements.
    system: str  # Its system.
    model: str  # Name of the bundle's model.
    device: str  # Profile that it was planned for.
    profile: str  # That times are named after.
    measurements: str | None  # Folder that the times went to; None where there are none.
    signatures: list[SignatureRow]  # Each on each processor.
    runner: RunnerRow | None  # None if it did not run.
    source: str = "measured"  # Where the figures come from.
    tested: bool = False  # Whether this way was tried on a phone.
    warnings: list[str]  # What a person should know.
