"""The folder from which a runner is built: C++ sources, the plan of one bundle, and the bundle's TFLite file."""

import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

from predictors.errors import StretchError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import JoinEntry
from scheduler.bundle.tflite_file import TfliteFile, bundle_tflite, parse_tflite
from scheduler.formats.tflite import TABLES
from scheduler.placement.place import Dispatch, Placement
from scheduler.runtime.plan import ExecutionPlan, PlannedSubgraph, make_plan
from scheduler.runtime.record import SCHEMA, Opening


@dataclass(frozen=True)
class Patch:
    """Four bytes of a file to replace with a number."""

    at: int  # Position of the first byte.
    value: int  # New number, little-endian.


def patches(content: bytes, file: TfliteFile, signature: str) -> list[Patch]:
    """Return the changes to a file in memory that leave only one signature and its subgraph.

    A list of a flatbuffer is its length followed by an offset for each element,
    relative to the offset's own position: a list that begins four bytes before an
    element has only that element, if these four bytes contain the length 1.
    Weights stay in place, so that many such copies share them.
    """
    file.ends(signature)
    definitions = file.model["signature_defs"]
    number = next(i for i, definition in enumerate(definitions) if definition["signature_key"] == signature)
    subgraph_index = int(definitions[number].get("subgraph_index", 0))
    model = _u32(content, 0)
    patched = [*_only(content, _slot(content, model, "Model", "subgraphs"), subgraph_index)]
    field = _slot(content, model, "Model", "signature_defs")
    patched += _only(content, field, number)
    vector = field + _u32(content, field)
    entry = vector + 4 + 4 * number
    index = _slot(content, entry + _u32(content, entry), "SignatureDef", "subgraph_index")
    if index:  # omitted in the file if it is 0
        patched.append(Patch(index, 0))
    return patched


def _only(content: bytes, field: int, element: int) -> tuple[Patch, Patch]:
    """Return changes after which the list of a field begins and ends with one of its elements."""
    length = field + _u32(content, field) + 4 * element
    return Patch(field, length - field), Patch(length, 1)


def _slot(content: bytes, table: int, kind: str, field: str) -> int:
    """Return the position of a field in a table; 0 if it is omitted."""
    index = table - struct.unpack_from("<i", content, table)[0]
    place = 4 + 2 * TABLES[kind][field][0]
    if place >= struct.unpack_from("<H", content, index)[0]:
        return 0
    offset = int(struct.unpack_from("<H", content, index + place)[0])
    return table + offset if offset else 0


def _u32(content: bytes, offset: int) -> int:
    return int(struct.unpack_from("<I", content, offset)[0])


#: Version of the format described in `cpp/plan_types.h`.
FORMAT = 1

#: Maximum number of axes of a tensor in the runner.
MAX_RANK = 8

#: Dispatch by family of processor (paper 003, Algorithm 1): work for a GPU is enqueued, the CPU's work runs on the
#: calling thread, and work for any other processor runs on a separate thread.
_DISPATCH: Mapping[str, Dispatch] = {"cpu": "inline", "gpu": "async"}

_KINDS: Mapping[Dispatch, str] = {"async": "kAsync", "blocking": "kBlocking", "inline": "kInline"}


_HEAD = """\
// Written by `stretch export --as cpp` for one TFLite file; it fits no other.
#ifndef NN_STRETCH_RUNNER_PLAN_H_
#define NN_STRETCH_RUNNER_PLAN_H_

#include "plan_types.h"

namespace plan {

"""


def plan_header(content: bytes, path: Path) -> str:
    """Return the text of `plan.h` for a TFLite file."""
    file = parse_tflite(content, path)
    plan = make_plan(file.plan)
    tensors = {tensor.name: number for number, tensor in enumerate(file.plan.tensors)}
    for tensor in file.plan.tensors:
        if tensor.dtype != "float32" or len(tensor.shape) > MAX_RANK:
            raise StretchError(
                f"tensor `{tensor.name}` of {path} is {tensor.dtype} with {len(tensor.shape)} axes", "the runner takes float32"
            )
    # in the order in which the state machine starts them
    processors = sorted(
        dict.fromkeys(sub.processor for sub in plan.subgraphs.values()), key=lambda name: [*_KINDS].index(dispatch_of(name))
    )
    steps = [plan.step(name) for name in sorted(plan.order, key=plan.order.__getitem__)]
    meetings = _meetings(plan)
    lines = [
        *_HEAD.splitlines(),
        "inline constexpr Tensor kTensors[] = {",
        *(
            f"    {{{_text(t.name)}, {len(t.shape)}, {{{', '.join(map(str, t.shape))}}}, {str(t.layout == 'NHWC').lower()}}},"
            for t in file.plan.tensors
        ),
        "};",
        "inline constexpr Processor kProcessors[] = {",
        *(f"    {{{_text(name)}, Dispatch::{_KINDS[dispatch_of(name)]}}}," for name in processors),
        "};",
    ]
    for number, step in enumerate(steps):
        lines += _tensor_lists(number, step, tensors, content, file)
    lines += ["inline constexpr Step kSteps[] = {"]
    lines += [_step(number, step, processors, meetings) for number, step in enumerate(steps)]
    lines += [
        "};",
        _numbers("kInputs", [tensors[name] for name in plan.inputs]),
        _numbers("kOutputs", [tensors[name] for name in plan.outputs]),
        "inline constexpr Plan kPlan = {",
        f"    {FORMAT}, {_text(file.plan.model)}, {_text(file.plan.device)},",
        f"    {_text(hashlib.sha256(content).hexdigest())}, {len(content)}u,",
        f"    {_text(_plan_start(plan).decode())},",
        f"    kTensors, {len(tensors)}, kProcessors, {len(processors)}, kSteps, {len(steps)},",
        f"    kInputs, {len(plan.inputs)}, kOutputs, {len(plan.outputs)}}};",
        "",
        "}  // namespace plan",
        "",
        "#endif  // NN_STRETCH_RUNNER_PLAN_H_",
        "",
    ]
    return "\n".join(lines)


def dispatch_of(processor: str) -> Dispatch:
    """Return how the runner starts the work of a processor."""
    return _DISPATCH.get(processor, "blocking")


def _plan_start(plan: ExecutionPlan) -> bytes:
    """Return the first line of a record of the runner's state machine."""
    places = {
        name: Placement(name, "litert", (), name, dispatch_of(name), False, "the runner's thread for it")
        for name in dict.fromkeys(sub.processor for sub in plan.subgraphs.values())
    }
    subgraphs, joins = tuple(plan.subgraphs.values()), tuple(plan.joins.values())
    placement = {name: places[sub.processor] for name, sub in plan.subgraphs.items()}
    return msgspec.json.encode(Opening(SCHEMA, 0, plan.inputs, plan.outputs, subgraphs, joins, placement, 1, True))


def _meetings(plan: ExecutionPlan) -> dict[str, int]:
    """Return the group of each branch that can start together with others: of one segment, on different processors, with equal inputs."""
    together: dict[tuple[str, tuple[str, ...]], list[PlannedSubgraph]] = {}
    for sub in plan.subgraphs.values():
        together.setdefault((sub.segment, tuple(sorted(set(sub.inputs)))), []).append(sub)
    several = [group for group in together.values() if len(group) > 1 and len({sub.processor for sub in group}) == len(group)]
    return {sub.name: number for number, group in enumerate(several) for sub in group}


def _tensor_lists(
    number: int, step: PlannedSubgraph | JoinEntry, tensors: Mapping[str, int], content: bytes, file: TfliteFile
) -> list[str]:
    rows = step.rows if isinstance(step, PlannedSubgraph) else {}
    reads = ", ".join("{{{}, {}, {}}}".format(tensors[name], *rows.get(name, (0, 0))) for name in step.inputs)
    changed = ", ".join(f"{{{patch.at}u, {patch.value}u}}" for patch in patches(content, file, step.name))
    return [
        f"inline constexpr Read kReads{number}[] = {{{reads}}};",
        _numbers(f"kWrites{number}", [tensors[name] for name in step.outputs]),
        f"inline constexpr Patch kPatches{number}[] = {{{changed}}};",
    ]


def _step(number: int, step: PlannedSubgraph | JoinEntry, processors: Sequence[str], meetings: Mapping[str, int]) -> str:
    processor = processors.index(step.processor) if isinstance(step, PlannedSubgraph) else -1
    lists = ", ".join(
        f"k{table}{number}, sizeof(k{table}{number}) / sizeof(k{table}{number}[0])" for table in ("Reads", "Writes", "Patches")
    )
    return f"    {{{_text(step.name)}, {_text(step.segment)}, {processor}, {lists}, {meetings.get(step.name, -1)}}},"


def _numbers(name: str, numbers: Sequence[int]) -> str:
    return f"inline constexpr int {name}[] = {{{', '.join(map(str, numbers))}}};"


def _text(text: str) -> str:
    """Return a C++ string literal for any text, because names come from foreign files."""
    # `?` may begin a trigraph
    printable = set(range(0x20, 0x7F)) - set(b'"\\?')
    return '"' + "".join(chr(byte) if byte in printable else f"\\{byte:03o}" for byte in text.encode()) + '"'


#: Names of the files written in addition to the sources.
PLAN, MODEL = "plan.h", "model.tflite"


def write_runner(bundle: Bundle, out: Path) -> list[str]:
    """Write a folder in which CMake builds a runner of one bundle, and return the names of its files."""
    if out.exists():
        raise StretchError(f"{out} exists already", "choose a new folder with --out")
    content, _ = bundle_tflite(bundle)
    header = plan_header(content, bundle.path / str(bundle.manifest.tflite))
    sources = files("scheduler.tools.runner").joinpath("cpp")
    names = [source.name for source in sources.iterdir() if source.name.endswith((".h", ".cpp", ".txt"))]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            partial = Path(folder) / out.name
            partial.mkdir()
            for name in names:
                (partial / name).write_bytes(sources.joinpath(name).read_bytes())
            (partial / PLAN).write_text(header)
            (partial / MODEL).write_bytes(content)
            os.replace(partial, out)
    except (OSError, shutil.Error) as error:
        raise StretchError(f"cannot write {out}: {getattr(error, 'strerror', error)}", "choose a writable folder with --out") from error
    return sorted([*names, PLAN, MODEL])
