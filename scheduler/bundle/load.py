"""A bundle on disk: read, checked and signed. Its hashes prove that it is whole; only a signature proves who made it.

A bundle is replaced by exchanging two folders under one name. A reader that opened the name before and opens a file by it after
would mix two bundles; so a reader holds the folder itself and names files through it. A lock that readers share says
that the folder is in use; code that removes folders takes it exclusively first.

Whoever changes a file can state its new hash as well. A signature (Ed25519, RFC 8032) proves that the description, which
has the hashes of all other files, is as the holder of a key left it.
"""

import base64
import contextlib
import hashlib
import importlib
import math
import os
import tempfile
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from predictors import system
from predictors.errors import MissingBackendError, StretchError, install_line, upgrade_line
from predictors.files import open_regular, read_bytes
from predictors.joins import meetings
from scheduler.bundle.manifest import SCHEMA, JoinEntry, Manifest, SourceFile, SubgraphEntry, Tensor
from scheduler.bundle.rows import ROW_AXIS, Rows, cut_shape
from scheduler.formats.onnx import OnnxFile, open_onnx
from scheduler.formats.onnx.file import MAX_WORK
from scheduler.formats.onnx.shapes.node import FLOAT
from scheduler.formats.tflite import open_tflite

#: Attempts to open a folder that is being removed, and the pause between them.
_ATTEMPTS, _PAUSE_S = 200, 0.005


class OpenFolder:
    """An open folder, which keeps its files for as long as this object lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open_shared(path) if system.OPENS_FOLDERS else None
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

    @property
    def root(self) -> Path:
        """A path of the folder that stays its own when its name becomes another's; the name itself where the system has no /proc."""
        root = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        return root if root.is_dir() else self._path

    def replace_root(self, text: str) -> str:
        """The text with the folder's name in place of `root`."""
        return text.replace(str(self.root), str(self._path))

    def contains(self, file: Path) -> bool:
        """Whether a file below `root` is in the folder once every link is followed."""
        while True:
            folder = os.path.realpath(self.root)
            real = os.path.realpath(file)
            if os.path.realpath(self.root) == folder:
                return Path(real).is_relative_to(folder)


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Hold the shared lock of a folder, so that it is not removed until the block ends.

    Yields:
        The folder's inode number, by which it is known under any name.
    """
    if not system.OPENS_FOLDERS:
        yield os.stat(path).st_ino
        return
    descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
    try:
        _lock(descriptor, "LOCK_SH")
        yield os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Try to hold the exclusive lock of a folder, to remove it.

    Yields:
        Whether the lock is held until the block ends: False if a process reads or writes
        the folder, or if the file system has no locks.
    """
    if not system.OPENS_FOLDERS:
        yield False
        return
    try:
        descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor, "LOCK_EX") is True and _is_same_folder(path, descriptor)
    finally:
        os.close(descriptor)


def _open_shared(path: Path) -> int:
    """A descriptor of the folder that has this name, with the shared lock on it."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
        # without locks nothing is removed while it could be in use either
        if _lock(descriptor, "LOCK_SH") is not False and _is_same_folder(path, descriptor):
            return descriptor
        os.close(descriptor)
        time.sleep(_PAUSE_S)
    raise StretchError(f"{path} is being removed", "try again after its removal")


def _lock(descriptor: int, kind: str) -> bool | None:
    """Whether a lock on a folder could be taken; None on a file system without locks."""
    try:
        system.fcntl.flock(descriptor, getattr(system.fcntl, kind) | system.fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_same_folder(path: Path, descriptor: int) -> bool:
    """Whether the path still names the folder of the descriptor."""
    opened = os.fstat(descriptor)
    try:
        current = os.stat(path)
    except OSError:
        return False
    return (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)


SIGNATURE = "signature.json"
MAX_BYTES = 64 << 10

#: Signed content begins with this, so that the signature fits nothing else.
_PURPOSE = b"nn-stretch bundle 1\n"
_KEY_HINT = "make one with `openssl genpkey -algorithm ed25519 -out key.pem`, and its public part with `openssl pkey -in key.pem -pubout`"


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file in the folder of a bundle's description."""

    schema: Literal[1]  # Of this file.
    algorithm: Literal["ed25519"]  # How it was signed.
    key: str  # Public key that it was signed with, base64; only a hint, since anybody can put theirs here.
    signature: str  # Of the description, base64.


def fingerprint(key: bytes) -> str:
    """A public key as people compare it: ``SHA256:`` and the base64 of its hash, as OpenSSH writes it.

    Args:
        key: Its 32 bytes.
    """
    return f"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip('=')}"


def public_key(path: Path) -> bytes:
    """The 32 bytes of the Ed25519 public key in a PEM file."""
    raw: bytes = _key(path, "public").public_bytes_raw()
    return raw


def sign(folder: Path, description: bytes, key: Path) -> bytes:
    """Sign a bundle's description; the signature is written next to it in one step.

    Args:
        description: Content of its `bundle.json`.
        key: PEM file (PKCS #8) of an Ed25519 private key without a password.
    """
    private = _key(key, "private")
    public: bytes = private.public_key().public_bytes_raw()
    signature = Signature(schema=1, algorithm="ed25519", key=_text(public), signature=_text(private.sign(_PURPOSE + description)))
    _write(folder / SIGNATURE, msgspec.json.format(msgspec.json.encode(signature), indent=1))
    return public


def check_signature(folder: Path, description: bytes, keys: Sequence[bytes]) -> bytes:
    """Which of some keys a bundle's description is signed with."""
    hint = "its origin is unknown: get it again from a trusted source"
    file = folder / SIGNATURE
    if not file.exists():
        raise StretchError(f"{folder} is not signed: it has no {SIGNATURE}", "its maker signs it with `stretch verify --sign`")
    try:
        stored = msgspec.json.decode(read_bytes(file, "bundle's signature", MAX_BYTES, hint), type=Signature)
        signature = base64.b64decode(stored.signature, validate=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise StretchError(f"{file} is damaged: {error}", hint) from error
    package = _package("cryptography.hazmat.primitives.asymmetric.ed25519")
    for key in keys:
        with contextlib.suppress(_package("cryptography.exceptions").InvalidSignature):
            package.Ed25519PublicKey.from_public_bytes(key).verify(signature, _PURPOSE + description)
            return key
    raise StretchError(f"{folder} is not signed with a key that is trusted", hint)


def _key(path: Path, kind: Literal["public", "private"]) -> Any:
    serialization, ed25519 = (_package(f"cryptography.hazmat.primitives.{name}") for name in ("serialization", "asymmetric.ed25519"))
    content = read_bytes(path, f"{kind} key", MAX_BYTES, _KEY_HINT)
    try:
        key = serialization.load_pem_public_key(content) if kind == "public" else serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, _package("cryptography.exceptions").UnsupportedAlgorithm) as error:
        raise StretchError(f"{path} holds no {kind} key in PEM without a password", _KEY_HINT) from error
    if not isinstance(key, getattr(ed25519, f"Ed25519{kind.title()}Key")):
        raise StretchError(f"{path} holds no {kind} key of Ed25519", _KEY_HINT)
    return key


def _write(file: Path, content: bytes) -> None:
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            os.chmod(name, 0o644)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise StretchError(f"cannot write {file}: {error.strerror}", "sign a copy that you may write to") from error


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingBackendError("signatures need the package `cryptography`, which is not installed", install_line("sign")) from error


MAX_PARTS = 20_000
MAX_TENSOR_ELEMENTS = 1 << 30


def graph_problems(manifest: Manifest) -> Iterator[str]:
    """Return the defects of the manifest's graph, one sentence each.

    Each tensor has one writer and at least one reader, both lists are in
    topological order, and the shapes of each join add up.
    """
    steps = [s.name for s in manifest.subgraphs] + [j.name for j in manifest.joins]
    if not manifest.subgraphs:
        yield "it has no subgraph"
        return
    if max(len(steps), len(manifest.tensors)) > MAX_PARTS:
        yield f"it has {len(steps)} subgraphs and joins and {len(manifest.tensors)} tensors, the limit is {MAX_PARTS}"
        return
    tensors = {t.name: t for t in manifest.tensors}
    for kind, names in (("tensor", [t.name for t in manifest.tensors]), ("subgraph or join", steps)):
        if duplicate := next((n for n, count in Counter(names).items() if count > 1), None):
            yield f"{kind} `{duplicate}` is there twice"
            return
    if reserved := {"input", "output"}.intersection(steps):
        yield f"no subgraph or join may be called `{reserved.pop()}`"
    reads = {s.name: s.inputs for s in manifest.subgraphs} | {j.name: j.inputs for j in manifest.joins}
    writes = {s.name: s.outputs for s in manifest.subgraphs} | {j.name: (j.output,) for j in manifest.joins}
    if problem := next(_consistency_end_problems(manifest), None):
        yield problem
        return
    for step in steps:
        for name in (*reads[step], *writes[step]):
            if name not in tensors:
                yield f"`{step}` uses the tensor `{name}`, which is not described"
                return
    for name in (*manifest.inputs, *manifest.outputs):
        if name not in tensors:
            yield f"the tensor `{name}` is not described"
            return
    yield from _tensor_problems(manifest, reads, writes)
    for subgraph in manifest.subgraphs:
        yield from _row_problems(subgraph, tensors)
    yield from _order_problems(manifest, reads, writes)
    for join in manifest.joins:
        yield from _join_problems(join, [tensors[i] for i in join.inputs], tensors[join.output])
    for kind, ends, shape in (
        ("input", manifest.inputs, manifest.model.input_shape),
        ("output", manifest.outputs, manifest.model.output_shape),
    ):
        tensor = ends[0]
        if tensors[tensor].shape != shape:
            yield f"the model's {'first ' if len(ends) > 1 else ''}{kind} has shape {list(shape)}, its tensor `{tensor}` {list(tensors[tensor].shape)}"


def _consistency_end_problems(manifest: Manifest) -> Iterator[str]:
    """The model and each subgraph read and write something, and nothing twice; results have a name each."""
    names = manifest.results
    if names and (len(set(names)) != len(manifest.outputs) or len(names) != len(manifest.outputs) or not all(names)):
        yield f"its {len(manifest.outputs)} outputs are called {', '.join(name or 'nothing' for name in names[:8])}"
    ends = [("the model", manifest.inputs, manifest.outputs)] + [(f"`{s.name}`", s.inputs, s.outputs) for s in manifest.subgraphs]
    for reader, *pair in ends:
        for verb, names in zip(("reads", "writes"), pair, strict=True):
            if not names:
                yield f"{reader} {verb} no tensor"
            if duplicate := next((n for n, count in Counter(names).items() if count > 1), None):
                yield f"{reader} {verb} the tensor `{duplicate}` twice"


def _tensor_problems(manifest: Manifest, reads: dict[str, tuple[str, ...]], writes: dict[str, tuple[str, ...]]) -> Iterator[str]:
    writers: dict[str, list[str]] = {name: ["input"] for name in manifest.inputs}
    for step, names in writes.items():
        for tensor_name in names:
            writers.setdefault(tensor_name, []).append(step)
    readers: dict[str, set[str]] = {name: {"output"} for name in manifest.outputs}
    for step, names in reads.items():
        for tensor_name in names:
            readers.setdefault(tensor_name, set()).add(step)
    for tensor in manifest.tensors:
        if min(tensor.shape, default=1) < 1 or math.prod(tensor.shape) > MAX_TENSOR_ELEMENTS:
            yield f"tensor `{tensor.name}` has the shape {list(tensor.shape)}, which is empty or too large"
        if tensor.layout == "NC" and len(tensor.shape) != 2:
            yield f"tensor `{tensor.name}` has layout NC and {len(tensor.shape)} axes"
        written, read = writers.get(tensor.name, []), readers.get(tensor.name, set())
        if written != [tensor.producer]:
            yield f"tensor `{tensor.name}` states the producer `{tensor.producer}` and is written by {', '.join(written) or 'nothing'}"
        if read != set(tensor.consumers) or not read:
            yield f"tensor `{tensor.name}` states the consumers {', '.join(tensor.consumers) or 'none'} and is read by {', '.join(sorted(read)) or 'nothing'}"


def _row_problems(subgraph: SubgraphEntry, tensors: dict[str, Tensor]) -> Iterator[str]:
    """A subgraph reads existing rows, of images with an axis of rows."""
    for name, (start, stop) in subgraph.rows.items():
        if name not in subgraph.inputs:
            yield f"`{subgraph.name}` states rows of `{name[:80]}`, which it does not read"
            continue
        tensor = tensors[name]
        axis = ROW_AXIS.get(tensor.layout)
        if axis is None or len(tensor.shape) != 4:
            yield f"`{subgraph.name}` reads rows of `{name}`, a tensor of layout {tensor.layout} and {len(tensor.shape)} axes"
        elif not start < stop <= tensor.shape[axis]:
            yield f"`{subgraph.name}` reads rows {start} to {stop} of `{name}`, which has {tensor.shape[axis]}"


def _order_problems(manifest: Manifest, reads: dict[str, tuple[str, ...]], writes: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Each list must be in topological order; both together must have no cycle."""
    available = set(manifest.inputs)
    remaining = {"subgraphs": deque(s.name for s in manifest.subgraphs), "joins": deque(j.name for j in manifest.joins)}
    progress = True
    while progress:
        progress = False
        for steps in remaining.values():
            while steps and all(tensor in available for tensor in reads[steps[0]]):
                available.update(writes[steps.popleft()])
                progress = True
    for kind, steps in remaining.items():
        if steps:
            yield f"the {kind} are not in topological order: `{steps[0]}` reads a tensor that is written later"
            return


def _join_problems(join: JoinEntry, inputs: list[Tensor], output: Tensor) -> Iterator[str]:
    if join.kind not in meetings:
        yield f"join `{join.name}` meets by `{join.kind[:40]}`, known are {', '.join(meetings)}"
        return
    if len(inputs) < 2 or len(set(join.inputs)) != len(inputs):
        yield f"join `{join.name}` needs two or more different tensors"
        return
    for tensor in inputs:
        if (tensor.dtype, tensor.layout, tensor.scale, tensor.zero_point) != (output.dtype, output.layout, output.scale, output.zero_point):
            yield f"join `{join.name}` reads `{tensor.name}` and writes `{output.name}`, which differ in type or layout"
    problem = meetings.get(join.kind).problem([tensor.shape for tensor in inputs], output.shape, output.layout)
    if problem is not None:
        yield f"join `{join.name}`{problem}"


def file_problems(path: Path, folder: OpenFolder, manifest: Manifest, *, hashes: bool) -> Iterator[str]:
    """Return defects of a bundle's files, one sentence each, without reading their content."""
    for name in _used_files(manifest):
        if name not in manifest.files:
            yield f"{path / 'bundle.json'} uses the file `{name}` without stating its size and hash"
    for name in manifest.files:
        if not is_safe_path(name):
            yield f"{path / 'bundle.json'} names the file `{name}`, which is not inside the bundle"
            continue
        try:
            problem = _file_problem(folder, manifest, name, hashes=hashes)
        except FileNotFoundError:
            problem = "is missing"
        except (OSError, ValueError, RuntimeError) as error:
            problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if problem:
            yield f"{path / name} {problem}"


def onnx_problems(path: Path, folder: OpenFolder, manifest: Manifest) -> Iterator[str]:
    """Return the defects of a bundle's unchanged ONNX files, one sentence each."""
    compiled = {name for files in manifest.contexts.values() for name in files.values()}
    work: dict[str, int] = {}
    for name in manifest.files:
        if not name.endswith(".onnx"):
            continue
        try:
            if manifest.own is not None and name == manifest.own.file:
                check_source_file(folder.root / name, manifest.own)
            opened = open_onnx(folder.root / name)
            if missing := _missing_location(opened, name, manifest):
                yield f"{path / name} keeps weights in `{missing}`, which is not a file of the bundle"
            # code for a DSP is one opaque operator, and runs only if its user trusts it
            elif name not in compiled and (manifest.own is None or name != manifest.own.file):
                work[name] = opened.cost.work
                yield from _end_problems(path, opened, name, manifest)
        except StretchError as error:
            yield folder.replace_root(error.message)
    total = sum(work.get(entry.file, 0) for entry in manifest.subgraphs)
    if total > MAX_WORK:
        yield f"{path / 'bundle.json'}: its subgraphs take {total:.1e} multiply-accumulates, {MAX_WORK:.1e} are allowed"


def check_source_file(path: Path, own: SourceFile) -> set[str]:
    """Refuse the user's own file if running it is unbounded work; return the files of its external weights."""
    if path.suffix == ".tflite":
        open_tflite(path)
        return set()
    opened = open_onnx(path)
    sizes = {end.name: end.shape for end in (*own.inputs, *own.outputs)}
    for value in (*opened.proto.graph.input, *opened.proto.graph.output):
        kind, shape = value.type.tensor_type, value.type.tensor_type.shape
        kind.elem_type = kind.elem_type or FLOAT
        if value.name in sizes:
            # sizes that the file leaves open are those that the bundle has
            del shape.dim[:]
            for size in sizes[value.name]:
                shape.dim.add().dim_value = size
    _ = opened.cost
    return opened.external


def is_safe_path(name: str) -> bool:
    """Whether a file's name in a manifest stays inside of the bundle."""
    path = PurePosixPath(name)
    return (
        bool(path.parts)
        and "\\" not in name
        and "\0" not in name
        and not path.is_absolute()
        and ".." not in path.parts
        and ":" not in path.parts[0]
    )


def _used_files(manifest: Manifest) -> list[str]:
    used = [s.file for s in manifest.subgraphs] + [manifest.whole, *manifest.controls.values(), *manifest.int8_controls.values()]
    used += [manifest.own.file] if manifest.own is not None else []
    if manifest.tflite is not None:
        used.append(manifest.tflite)
    used += [name for files in manifest.contexts.values() for name in files.values()]
    return [*used, *manifest.aot.values()]


def _file_problem(folder: OpenFolder, manifest: Manifest, name: str, *, hashes: bool) -> str:
    """Return the defect of one file; empty if it has none."""
    path, entry = folder.root / name, manifest.files[name]
    if not path.exists() and not path.is_symlink():
        return "is missing"
    if not folder.contains(path):
        return "is a link that leads out of the bundle"
    if path.exists() and not path.is_file():
        return "is not a file"
    with open_regular(path) as stream:
        size = stream.seek(0, 2)
        if size != entry.bytes:
            return f"has {size} bytes, the bundle was written with {entry.bytes}"
        stream.seek(0)
        if hashes and hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
            return "was changed after the bundle was written: its SHA-256 differs"
    return ""


def _missing_location(opened: OnnxFile, name: str, manifest: Manifest) -> str:
    """Return a file of external weights that is not a hashed file of the bundle; empty if there is none."""
    for location in opened.external:
        file = str(PurePosixPath(name).parent / location) if is_safe_path(location) else None
        if file not in manifest.files:
            return location or "a file without a name"
    return ""


def _end_problems(path: Path, opened: OnnxFile, name: str, manifest: Manifest) -> Iterator[str]:
    """Inputs and outputs of a file must be the tensors that the manifest states: buffers are made for those."""
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    stated: list[tuple[tuple[str, ...], tuple[str, ...], Mapping[str, Rows]]]
    stated = [(entry.inputs, entry.outputs, entry.rows) for entry in manifest.subgraphs if entry.file == name]
    stated += [(manifest.inputs, manifest.outputs, {})] * (name == manifest.whole)
    for inputs, outputs, rows in stated:
        for side, names, shapes, cuts in zip(("input", "output"), (inputs, outputs), opened.ends, (rows, {}), strict=True):
            expected = {end_name: cut_shape(tensors[end_name].shape, cuts.get(end_name), tensors[end_name].layout) for end_name in names}
            if shapes != expected:
                file_text, manifest_text = _format_shapes(shapes), _format_shapes(expected)
                yield f"{path / name} does not fit the bundle: its {side} is {file_text}, the manifest states {manifest_text}"


def _format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"`{name}` {list(shape)}" for name, shape in shapes.items()) or "nothing"


MANIFEST = "bundle.json"
MAX_MANIFEST_BYTES = 16 << 20

_HINT = "write the bundle again with `stretch branch`"


@dataclass(frozen=True)
class Bundle:
    """A bundle with a consistent description and all its files.

    It keeps the state in which it was read, even if another bundle takes its
    place meanwhile: the previous folder is kept for as long as this lives.

    Args:
        path: The folder.
        manifest: Its description.
        folder: The open folder; None for one that is never replaced.
        signer: Fingerprint of the trusted key that it is signed with; None if no key is required.
    """

    path: Path
    manifest: Manifest
    folder: OpenFolder | None = field(default=None, compare=False, repr=False)
    signer: str | None = None

    def file(self, name: str) -> Path:
        """A path of one of the bundle's files, by its name in the manifest; it may lead through a descriptor of this process."""
        return (self.path if self.folder is None else self.folder.root) / name

    def replace_root(self, text: str) -> str:
        """The text with the bundle's folder in place of what `file` gives."""
        return text if self.folder is None else self.folder.replace_root(text)

    def subgraph(self, name: str) -> SubgraphEntry:
        """The subgraph called `name`."""
        return next(entry for entry in self.manifest.subgraphs if entry.name == name)


@contextlib.contextmanager
def add_path_to_errors(bundle: Bundle | OpenFolder) -> Iterator[None]:
    """Make errors name the bundle's folder, not the descriptor through which its files are opened."""
    try:
        yield
    except StretchError as error:
        error.message = bundle.replace_root(error.message)
        error.args = (error.message,)
        raise


class _Version(msgspec.Struct):
    """Only the schema number, so that a newer manifest is named as such."""

    schema: int = 0


def load_bundle(path: str | Path, *, check_hashes: bool = False, trust: str | Path | Sequence[str | Path] = ()) -> Bundle:
    """Read a bundle and check everything that does not need to run it.

    Args:
        path: The bundle's folder.
        check_hashes: Also compare each file's SHA-256, about a second a gigabyte. Hashes prove that
            the bundle is whole, not who made it.
        trust: File with a public key (Ed25519, PEM), or several, with one of which the bundle has to be signed; hashes are
            compared then. Empty: any author.

    Raises:
        StretchError: If the folder is no bundle, its schema is newer or older than
            this code's, a file is missing, outside of the folder, of the wrong size or
            content, tensors, subgraphs and joins do not fit together, or it is not
            signed with a key of `trust`.
        MissingBackendError: If the package that checks signatures is missing.
    """
    keys = [public_key(Path(key)) for key in ([trust] if isinstance(trust, str | Path) else trust)]
    bundle = read_bundle(Path(path), keys)
    for problem in bundle_problems(bundle, hashes=check_hashes or bool(keys)):
        raise StretchError(problem, _HINT)
    return bundle


def read_bundle(path: Path, keys: Sequence[bytes] = ()) -> Bundle:
    """Read only a bundle's description; its files are not checked.

    Args:
        keys: Public keys, 32 bytes each, with one of which the description has to be signed; none: with any or not at all.
    """
    try:
        folder = OpenFolder(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_bundle(path) from error
    except (OSError, ValueError) as error:
        raise StretchError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    with add_path_to_errors(folder):
        text = _read_description(folder.root)
        signer = fingerprint(check_signature(folder.root, text, keys)) if keys else None
        return Bundle(path, _decode(folder.root, text), folder, signer)


def bundle_problems(bundle: Bundle, *, hashes: bool) -> Iterator[str]:
    """Return the defects of a bundle, one sentence each.

    The content of a file is read only once all files are as they were written.

    Args:
        bundle: A bundle fresh from `read_bundle`.
        hashes: Whether to compare each file's SHA-256.
    """
    folder = bundle.folder or OpenFolder(bundle.path)
    damaged = False
    for problem in file_problems(bundle.path, folder, bundle.manifest, hashes=hashes):
        damaged = True
        yield problem
    for problem in graph_problems(bundle.manifest):
        damaged = True
        yield f"{bundle.path / MANIFEST}: {problem}"
    if not damaged:
        yield from onnx_problems(bundle.path, folder, bundle.manifest)


def _no_bundle(path: Path) -> StretchError:
    return StretchError(f"{path} is not a bundle: it has no {MANIFEST}", "make one with `stretch branch MODEL --device DEVICE`")


def read_manifest(path: Path) -> Manifest:
    """Read the description in a folder, without keeping the folder open."""
    return _decode(path, _read_description(path))


def _read_description(path: Path) -> bytes:
    """Read the file of a description."""
    file = path / MANIFEST
    if not file.exists() and not file.is_symlink():
        raise _no_bundle(path)
    if file.exists() and not file.is_file():
        raise StretchError(f"{file} is not a file", _HINT)
    return read_bytes(file, "bundle's description", MAX_MANIFEST_BYTES, _HINT)


def _decode(path: Path, text: bytes) -> Manifest:
    file = path / MANIFEST
    try:
        schema = msgspec.json.decode(text, type=_Version).schema
        if schema > SCHEMA:
            raise StretchError(f"{file} has schema {schema}, this nn-stretch reads up to {SCHEMA}", upgrade_line())
        if schema < SCHEMA:
            raise StretchError(
                f"{file} has schema {schema}, which this nn-stretch does not read: make the bundle again with `stretch branch` or `stretch export`",
                f"schema {SCHEMA} is read",
            )
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"{file} is damaged: {error}", _HINT) from error


def sign_bundle(path: str | Path, key: Path) -> str:
    """Sign a bundle that is whole.

    Args:
        key: PEM file (PKCS #8) of an Ed25519 private key without a password.
    """
    bundle = load_bundle(path, check_hashes=True)
    folder = bundle.file("")
    with add_path_to_errors(bundle):
        return fingerprint(sign(folder, _read_description(folder), key))
