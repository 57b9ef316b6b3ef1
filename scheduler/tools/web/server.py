"""Serves the page of `stretch web` to one browser at a time, and checks the page's answers.

The server is Python's own: a few fixed addresses, one reader, and no framework to keep up to date. Every address starts
with a random token, and of a bundle only the files in its manifest are served. A page on another machine needs https,
because browsers allow WebGPU and shared memory only for secure origins; the certificate is made for one run.
"""

import datetime
import gzip
import ipaddress
import json
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha512
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import onnx

from predictors.errors import MissingBackendError, StretchError, UsageError, first_line, install_line
from predictors.files import cache_folder
from predictors.join_rules import combine
from predictors.joins import meetings
from scheduler.bundle.load import Bundle
from scheduler.checks.verify import random_input
from scheduler.measure.steady import ratio_interval
from scheduler.placement.place import Placement
from scheduler.runtime.inputs import as_arrays
from scheduler.runtime.machine import Event, Instruction, Machine
from scheduler.runtime.plan import make_plan
from scheduler.runtime.record import Line, Opening
from scheduler.runtime.sequential import Sequential

PAGE = Path(__file__).parent / "page"

#: ONNX Runtime Web: its version, and the SHA-512 of npm's package (MIT, 34 MB packed).
RUNTIME, RUNTIME_SHA512 = (
    "onnxruntime-web@1.30.0",
    "ab4cbe26baedba45d2cec05610c71c55fa97db92d19a8b171c5f8269126683ca590a5cdc57bb2f35ce2b298de32f4d956fb42644c0ecd528a0a91e025c07ca61",
)
#: Files that the page downloads: 14 MB of WebAssembly for the CPU, 27 MB for WebGPU; gzip reduces both to a third.
RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)

#: Maximum size of a message from the page, bytes.
MAX_BYTES = 4 << 20

#: Largest difference from this machine's runtime, relative to the largest output, that counts as correct.
TOLERANCE = 1e-4

_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"} | {
    ".wasm": "application/wasm",
    ".json": "application/json",
}


def runtime_folder(archive: Path | None = None) -> Path:
    """Return the folder of ONNX Runtime Web's files, unpacked once into the cache.

    Args:
        archive: The package as a file; None to download it with `npm`.

    Raises:
        MissingBackendError: Without a package and without `npm`, or if the download fails.
        StretchError: If the file is another package.
    """
    folder = cache_folder(RUNTIME.replace("@", "-"))
    if all((folder / name).is_file() for name in RUNTIME_FILES):
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        package = archive or _download(Path(scratch))
        try:
            content = package.read_bytes()
        except OSError as error:
            raise StretchError(f"cannot read {package}: {error.strerror}") from error
        if sha512(content).hexdigest() != RUNTIME_SHA512:
            raise StretchError(f"{package} is not the package {RUNTIME}", f"get it with: npm pack {RUNTIME}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unpacked, tarfile.open(package) as opened:
            for name in RUNTIME_FILES:
                member = opened.extractfile(f"package/dist/{name}")
                assert member is not None
                data = member.read()
                (Path(unpacked) / name).write_bytes(data)
                (Path(unpacked) / f"{name}.gz").write_bytes(gzip.compress(data, 6))
            shutil.copytree(unpacked, folder, dirs_exist_ok=True)
    return folder


def _download(folder: Path) -> Path:
    hint = f"run `npm pack {RUNTIME}` where npm is, and give the file with --runtime"
    npm = shutil.which("npm")
    if npm is None:
        raise MissingBackendError("the page needs ONNX Runtime Web once, and there is no `npm` to download it", hint)
    done = subprocess.run([npm, "pack", RUNTIME, "--pack-destination", str(folder)], capture_output=True, text=True, check=False)
    packages = list(folder.glob("*.tgz"))
    if done.returncode or not packages:
        raise MissingBackendError(f"npm cannot download {RUNTIME}: {next(iter(done.stderr.splitlines()), 'no package')}", hint)
    return packages[0]


class PageBundle:
    """A bundle in the form that the page gets.

    Args:
        name: Name of the bundle in addresses.
        title: Name of the bundle on the page.
        bundle: The bundle, whose tensors must all be in fp32.

    Raises:
        UsageError: If the page cannot run it.
    """

    def __init__(self, name: str, title: str, bundle: Bundle) -> None:
        manifest = self.manifest = bundle.manifest
        self.bundle, self.name = bundle, name
        if other := next((tensor for tensor in manifest.tensors if tensor.dtype != "float32"), None):
            raise UsageError(
                f"the tensor `{other.name}` of {bundle.path} is {other.dtype}, and the page runs float32 tensors",
                "give the bundle that `stretch branch` wrote",
            )
        self.plan = make_plan(manifest)
        tensors = {tensor.name: tensor for tensor in manifest.tensors}
        joins = []
        for join in manifest.joins:
            meeting = meetings.get(join.kind)
            if meeting.operator != "add" and meeting.combine is not combine:
                raise UsageError(f"the page cannot compute the join `{join.name}`, a `{join.kind}`", "plan with --set join=concat")
            output = tensors[join.output]
            axis = None if meeting.operator == "add" else meeting.axis(output.layout, len(output.shape))
            joins.append({"name": join.name, "inputs": join.inputs, "output": join.output, "axis": axis})
        original = manifest.model.original_macs or 1
        self.page: dict[str, Any] = {
            "id": name,
            "title": title,
            "address": f"bundles/{name}",
            "inputs": manifest.inputs,
            "outputs": manifest.outputs,
            "tensors": [{"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype} for tensor in manifest.tensors],
            "subgraphs": [
                {key: getattr(entry, key) for key in ("name", "processor", "file", "inputs", "outputs", "rows")}
                for entry in map(bundle.subgraph, self.plan.subgraphs)
            ],
            "joins": joins,
            "order": list(self.plan.order),
            "processors": sorted({entry.processor for entry in manifest.subgraphs}),
            "controls": manifest.controls,
            "macs": {"branches": manifest.model.macs / original}
            | {control: macs / original for control, macs in manifest.control_macs.items()},
        }
        x = random_input(bundle)
        self.tensors = {("tensors", key): value for key, value in as_arrays(x, manifest.inputs).items()}
        for control, file in {"outputs": manifest.whole, **manifest.controls}.items():
            values = Sequential(bundle.path / file).run(x)
            arrays = values.values() if isinstance(values, Mapping) else [values]
            self.tensors |= {(control, key): value for key, value in zip(manifest.outputs, arrays, strict=True)}

    def machine(self) -> Machine:
        """Return the state machine that the page's machine must agree with."""
        places = {
            name: Placement(step.processor, "browser", (), step.processor, "blocking", False, "in the page")
            for name, step in self.plan.subgraphs.items()
        }
        return Machine.of(self.plan, places)


_Ms = Annotated[float, msgspec.Meta(gt=0, le=1e7)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Times = Annotated[list[_Ms], msgspec.Meta(max_length=10_000)]


class BrowserDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of the browser by the page."""

    agent: _Text
    cores: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    isolated: bool
    webgpu: bool
    fp16: bool  # Whether WebGPU computes in half precision.
    webnn: bool
    lacks: Annotated[list[_Text], msgspec.Meta(max_length=20)]


class BrowserSpan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of one inference, in ms from the inference's start."""

    step: _Name
    queue: _Name
    start_ms: Annotated[float, msgspec.Meta(ge=-1, le=1e7)]
    end_ms: Annotated[float, msgspec.Meta(ge=-1, le=1e7)]
    handover_ms: Annotated[float, msgspec.Meta(ge=-1, le=1e7)]  # Time from the page to the worker and back, without the step; 0 for a join.


class _Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event of the page's state machine, with its answer."""

    event: Event
    instructions: list[Instruction]


class BrowserRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one bundle, and a record of its first inference."""

    bundle: _Name
    device: BrowserDevice
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    providers: dict[_Name, _Name]  # Provider that ran each processor's work.
    times_ms: dict[_Name, _Times]  # Times of each measured network, by rounds.
    differences: dict[_Name, Annotated[float, msgspec.Meta(ge=0)] | None]  # Differences from this machine's outputs; None if not finite.
    spans: Annotated[list[BrowserSpan], msgspec.Meta(max_length=40_000)]
    record: Annotated[list[_Turn], msgspec.Meta(max_length=100_000)]


class _PartialRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of all measured networks so far."""

    times_ms: dict[_Name, _Times]


class BrowserRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Another network's time over the branches': above 1 the branches are faster."""

    over: str  # Name of the other network.
    ratio: float  # Ratio of the medians.
    low: float  # Lower end of the 95 % interval.
    high: float | None  # Upper end; None with too few rounds for an interval.


class BrowserAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A browser's measurements of a bundle; the fields are keys of `stretch web --json`."""

    bundle: str  # Folder of the bundle.
    browser: str  # Browser by its own name.
    threads: int  # Number of WebAssembly threads on the CPU.
    providers: dict[str, str]  # Provider that ran each processor's work: ``wasm``, ``webgpu`` or ``webnn``.
    lacks: list[str]  # Features that the browser lacks.
    median_ms: dict[str, float]  # Median time of each network.
    p90_ms: dict[str, float]
    rounds: int  # Number of rounds of each network.
    macs_ratio: dict[str, float]  # Multiply-accumulates over the original's.
    ratios: list[BrowserRatio]  # Comparison of the branches with each single processor.
    differences: dict[str, float | None]  # Differences from this machine's outputs, relative to the largest.
    right: bool  # Whether all differences are below `TOLERANCE`.
    overlap_ms: float  # Time of the median inference during which two processors computed.
    handover_ms: float | None  # Median time of the messages to a worker and back over the subgraphs; None without any.
    predicted_ms: float | None  # Predicted time for the device of the plan.
    sentences: list[str]  # The results in words.


class Measurer(Protocol):
    """Lets the page time networks, and makes a profile from the times."""

    def answer(self, message: bytes) -> dict[str, Any]:
        """Return the next measurement for the page, or ``done`` when there are enough."""

    def network(self, name: str) -> bytes | None:
        """Return a network's ONNX file; None for an unknown name."""


@dataclass
class PageServer:
    """The server of the page.

    Args:
        bundles: Bundles that the page runs.
        runtime: Folder of ONNX Runtime Web.
        host: Address to listen at; for other than loopback addresses the page is served by https.
        port: Port; 0 for any free one.
        measurer: Lets the page measure networks first; None for none.
        report: Gets sentences for the person who started the server.
    """

    bundles: Sequence[PageBundle]
    runtime: Path
    host: str = "127.0.0.1"
    port: int = 0
    measurer: Measurer | None = None
    report: Callable[[str], None] = lambda text: None
    answers: list[BrowserAnswer] = field(default_factory=list)
    lines: list[Opening | Line] = field(default_factory=list)  # A record of the first inferences of all runs, for `record.replay`.
    ended: threading.Event = field(default_factory=threading.Event)
    problem: str | None = None  # Reason why the page gave up, or None.

    def __post_init__(self) -> None:
        """Start to listen at the address."""
        self.token = secrets.token_urlsafe(16)
        self.lock = threading.Lock()
        self.busy = False  # Whether a page is running.
        handler = type("PageHandler", (_Handler,), {"server_page": self})
        try:
            self._server = _Server((self.host, self.port), handler)
        except OSError as error:
            raise UsageError(
                f"cannot listen at {self.host}, port {self.port}: {error.strerror}", "choose another --host or --port"
            ) from error
        self.port = self._server.server_port
        self.secure = not ipaddress.ip_address(socket.gethostbyname(self.host)).is_loopback
        if self.secure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            with tempfile.TemporaryDirectory() as folder:
                context.load_cert_chain(_certificate(Path(folder), self.reachable_at()))
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def reachable_at(self) -> str:
        """Return the address under which other machines reach this one."""
        if self.host not in ("0.0.0.0", "::"):
            return self.host
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                # picks the interface of the default route; nothing is sent
                probe.connect(("192.0.2.1", 9))
                return str(probe.getsockname()[0])
            except OSError:
                return socket.gethostbyname(socket.gethostname())

    @property
    def address(self) -> str:
        """Address to open in the browser."""
        return f"{'https' if self.secure else 'http'}://{self.reachable_at()}:{self.port}/{self.token}/"

    def __enter__(self) -> "PageServer":
        """Start to serve in a thread, and return the server."""
        threading.Thread(target=self._server.serve_forever, name="web", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def page(self) -> dict[str, Any]:
        """Return the message that the page reads first."""
        runs = "runs each design in turns with the whole networks it is compared with, and sends the times back"
        purpose = f"This page {'measures this device, then ' if self.measurer and self.bundles else ''}{runs if self.bundles else 'measures this device, and sends the times back'}; it talks to no other machine."
        return {"purpose": purpose, "profile": self.measurer is not None, "bundles": [page_bundle.page for page_bundle in self.bundles]}

    def result(self, message: bytes) -> dict[str, Any]:
        """Check the times of a bundle, keep them, and return their summary for the page.

        Raises:
            StretchError: If the page cannot have measured them.
        """
        run = msgspec.json.decode(message, type=BrowserRun)
        page_bundle = next((page_bundle for page_bundle in self.bundles if page_bundle.name == run.bundle), None)
        if page_bundle is None:
            raise StretchError(f"the page ran no bundle `{run.bundle}`")
        machine = page_bundle.machine()
        for number, turn in enumerate(run.record):
            try:
                answered = machine.handle(turn.event)
            except (ValueError, KeyError) as error:
                raise StretchError(f"event {number} of the page's recording cannot follow what stands before it: {error}") from error
            if answered != turn.instructions:
                raise StretchError(f"the page answered event {number} otherwise than the state machine")
        answer = _check_run(page_bundle, run)
        with self.lock:
            self.lines += [Opening.of(0, page_bundle.machine()), *(Line(0, turn.event, turn.instructions) for turn in run.record)]
            self.answers.append(answer)
        for sentence in answer.sentences:
            self.report(f"{page_bundle.page['title']}: {sentence}")
        return {"sentences": answer.sentences}


def _ratios(times: Mapping[str, Sequence[float]]) -> dict[str, BrowserRatio]:
    """Return the ratio of each network's time to the branches'.

    Raises:
        StretchError: If the times do not include all networks in all rounds.
    """
    if "branches" not in times or len({len(values) for values in times.values()}) != 1 or not times["branches"]:
        raise StretchError("the page sent no times of all variants by rounds")
    ratios = {name: ratio_interval(values, times["branches"]) for name, values in times.items() if name != "branches"}
    return {name: BrowserRatio(over=name, ratio=item.value, low=item.low or 0.0, high=item.high) for name, item in ratios.items()}


def _check_run(bundle: PageBundle, run: BrowserRun) -> BrowserAnswer:
    times, by_name = run.times_ms, _ratios(run.times_ms)
    medians = {name: float(median(values)) for name, values in times.items()}
    ratios = []
    for control in bundle.manifest.controls:
        singles = [name for name in by_name if name.startswith(f"{control} on ")]
        ratios += [by_name[min(singles, key=medians.__getitem__)]] if singles else []
    right = all(value is not None and value <= TOLERANCE for value in run.differences.values())
    overlap = _overlap(run.spans)
    predicted = bundle.manifest.predicted.get("makespan_ms")
    sentences = [
        f"Branches take {medians['branches']:.4g} ms in the median, of which two processors computed at once for {overlap:.3g} ms."
    ]
    for row in ratios:
        verdict = "faster" if row.low > 1 else "slower" if row.high is not None and row.high < 1 else "neither faster nor slower"
        end = "more" if row.high is None else f"{row.high:.3g}"
        sentences.append(f"They are {verdict} than {row.over.replace('_', ' ')}: {row.ratio:.3g} times its speed ({row.low:.3g} to {end}).")
    sentences.append(
        "All outputs are those of this machine." if right else f"Some outputs differ from this machine's by more than {TOLERANCE:g}."
    )
    stand_ins = [name for name, provider in run.providers.items() if name != "cpu" and provider == "wasm"]
    if stand_ins:
        sentences.append(f"The work of {', '.join(stand_ins)} ran on WebAssembly, since this browser offers no such processor.")
    return BrowserAnswer(
        bundle=str(bundle.bundle.path),
        browser=run.device.agent,
        threads=run.threads,
        providers=dict(run.providers),
        lacks=list(run.device.lacks),
        median_ms=medians,
        p90_ms={name: float(np.percentile(values, 90)) for name, values in times.items()},
        rounds=len(times["branches"]),
        macs_ratio=bundle.page["macs"],
        ratios=ratios,
        differences=dict(run.differences),
        right=right,
        overlap_ms=overlap,
        handover_ms=float(median(handed)) if (handed := [span.handover_ms for span in run.spans if span.handover_ms]) else None,
        predicted_ms=predicted,
        sentences=sentences,
    )


def _overlap(spans: Sequence[BrowserSpan]) -> float:
    """Return the time in ms during which at least two queues ran a step."""
    moments = sorted([(span.start_ms, 1) for span in spans] + [(span.end_ms, -1) for span in spans])
    total, running, before = 0.0, 0, 0.0
    for time, change in moments:
        total += time - before if running > 1 else 0.0
        running, before = running + change, time
    return total


def _certificate(folder: Path, host: str) -> Path:
    """Return a self-signed certificate for one run, with its key, in one file."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingBackendError(
            "a page for other machines needs https, and the package cryptography for it", install_line("web")
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nn-stretch")])
    now = datetime.datetime.now(datetime.UTC)
    try:
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        names = [x509.DNSName(host)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "page.pem"
    path.touch(0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a closed page, and a browser that does not yet trust the certificate; report other errors."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_page: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal gets only sentences."""

    def _send(self, status: HTTPStatus, content: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        self._send(status, json.dumps({"problem": problem}).encode())

    def _path(self) -> list[str] | None:
        """Return the address after the token; refuse addresses without it."""
        parts = self.path.partition("?")[0].split("/")[1:]
        if len(parts) < 2 or not secrets.compare_digest(parts[0].encode(), self.server_page.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "this address lacks the token that `stretch web` printed")
            return None
        return parts[1:]

    def do_GET(self) -> None:
        """Send files of the page, of the runtime and of bundles."""
        match self._path():
            case None:
                return
            case ["page.json"]:
                self._send(HTTPStatus.OK, msgspec.json.encode(self.server_page.page()))
            case [name] if (PAGE / (name or "index.html")).name in _PAGE_FILES:
                path = PAGE / (name or "index.html")
                self._send(HTTPStatus.OK, path.read_bytes(), _TYPES[path.suffix])
            case ["runtime", name] if name in RUNTIME_FILES:
                self._runtime(name)
            case ["networks", name] if self.server_page.measurer and (network := self.server_page.measurer.network(name)) is not None:
                self._send(HTTPStatus.OK, network, "application/octet-stream")
            case ["bundles", name, *rest]:
                self._bundle(name, rest)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def _runtime(self, name: str) -> None:
        packed = "gzip" in self.headers.get("Accept-Encoding", "")
        content = (self.server_page.runtime / (f"{name}.gz" if packed else name)).read_bytes()
        headers = {"Cache-Control": "max-age=31536000, immutable", **({"Content-Encoding": "gzip"} if packed else {})}
        self._send(HTTPStatus.OK, content, _TYPES[Path(name).suffix], headers)

    def _bundle(self, name: str, segments: Sequence[str]) -> None:
        page_bundle = next((page_bundle for page_bundle in self.server_page.bundles if page_bundle.name == name), None)
        if page_bundle is not None and segments[:1] == ["files"] and (file := "/".join(segments[1:])) in page_bundle.manifest.files:
            path = page_bundle.bundle.file(file)
            # the page's runtime needs one file per network, with embedded weights
            content = onnx.load(path).SerializeToString() if path.suffix == ".onnx" else path.read_bytes()
            self._send(HTTPStatus.OK, content, "application/octet-stream")
        elif page_bundle is not None and len(segments) == 2 and (values := page_bundle.tensors.get((segments[0], segments[1]))) is not None:
            self._send(HTTPStatus.OK, np.ascontiguousarray(values).tobytes(), "application/octet-stream")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def do_POST(self) -> None:
        """Answer a message of the page."""
        parts, page = self._path(), self.server_page
        if parts is None:
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BYTES:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a message may have {MAX_BYTES} bytes")
            return
        message = self.rfile.read(int(length))
        try:
            answer = self._answer(parts, message)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            page.report(f"the page sent an impossible measurement: {first_line(error)}")
            self._refuse(HTTPStatus.BAD_REQUEST, f"the server does not believe this: {first_line(error)}")
        except StretchError as error:
            page.report(str(error))
            self._refuse(HTTPStatus.CONFLICT, str(error))
        else:
            if answer is None:
                self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")
            else:
                self._send(HTTPStatus.OK, json.dumps(answer).encode())

    def _answer(self, parts: Sequence[str], message: bytes) -> dict[str, Any] | None:
        page = self.server_page
        match parts:
            case ["start"]:
                msgspec.json.decode(message, type=dict[str, BrowserDevice])
                with page.lock:
                    if page.busy:
                        raise StretchError("another page runs already; close it, or wait until it is done")
                    page.busy = True
                return {}
            case ["ratios"]:
                times = msgspec.json.decode(message, type=_PartialRun).times_ms
                return {name: msgspec.structs.asdict(ratio) for name, ratio in _ratios(times).items()}
            case ["result"]:
                return page.result(message)
            case ["networks"] if page.measurer is not None:
                return page.measurer.answer(message)
            case ["failure"]:
                page.problem = msgspec.json.decode(message, type=dict[str, _Text]).get("problem", "")
                page.report(f"the page gave up: {page.problem}")
                page.busy = False
                return {}
            case ["end"]:
                page.busy = False
                if page.answers or page.measurer is not None:
                    page.ended.set()
                return {}
        return None


_PAGE_FILES = frozenset(path.name for path in PAGE.iterdir())
