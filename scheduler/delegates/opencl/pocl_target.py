"""PoCL on a processor that is newer than its compiler.

PoCL asks LLVM for the processor's name. LLVM answers ``generic`` where it does not
know the model, and clang then refuses that very name for x86-64 ("unknown target CPU
'generic'", pocl/pocl#1049), so no kernel compiles: the LLVM 14 of PoCL's wheel knows
no AMD Zen 4 or 5 and no Intel of 2024 or later. PoCL 3.0 reads no setting for it.
The name is one pointer in the device's structure. It is set to the oldest processor
with the instructions of the library of built-ins that PoCL chose for this one, so
that both sides of a call agree on how vectors are passed.
"""

import ctypes
import os
import platform
import struct
from typing import Any

#: What PoCL's LLVM says of a processor that it does not know.
UNKNOWN = "generic"
#: Instruction sets, as Linux names them, of a library of built-ins, and the oldest processor that has them; the best first.
TARGETS = (
    ("skylake-avx512", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma"})),
    ("haswell", frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "cx16", "popcnt", "abm"})),
)
#: Bytes of the structure that are searched; the name lies at 640 in PoCL 3.0.
_SEARCHED = 2048
#: Names that PoCL's structures point to: they must live as long as the process.
_NAMES: dict[str, Any] = {}


def is_unknown(device: Any) -> bool:
    """Whether a `pyopencl.Device` is PoCL's for a processor that its compiler does not know."""
    return bool(device.platform.name == "Portable Computing Language" and device.version.split()[-1].endswith(f"-{UNKNOWN}"))


def target(flags: frozenset[str]) -> str | None:
    """The processor to compile for on one with these instructions, or None if there is none to choose."""
    return next((name for name, needed in TARGETS if needed <= flags), None)


def name_target(device: Any, flags: frozenset[str]) -> str | None:
    """Tell PoCL which processor to compile for, before the device is divided or gets a context."""
    name = target(flags) if platform.machine() == "x86_64" else None
    place = place_of(device.int_ptr, UNKNOWN) if name else None
    if name is None or place is None:
        return None
    point(place, name)
    return name


def point(place: int, name: str) -> None:
    """Make the pointer at an address point to a name."""
    kept = _NAMES.setdefault(name, ctypes.create_string_buffer(name.encode()))
    ctypes.c_void_p.from_address(place).value = ctypes.addressof(kept)


def place_of(structure: int, name: str) -> int | None:
    """Address of the one pointer to a name in a structure; None where there is none, or more than one.

    Memory is read through the kernel, which answers with an error where a plain read would end the process.
    """
    wanted = name.encode() + b"\0"
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        content = _read(memory, structure, _SEARCHED)
        words = struct.unpack(f"={len(content) // 8}Q", content[: len(content) // 8 * 8])
        places = [structure + 8 * i for i, word in enumerate(words) if _read(memory, word, len(wanted)) == wanted]
    finally:
        os.close(memory)
    return places[0] if len(places) == 1 else None


def _read(memory: int, address: int, size: int) -> bytes:
    """Bytes at an address of this process, fewer or none where it is not mapped."""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
