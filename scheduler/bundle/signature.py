"""Signatures of bundles: hashes prove that a bundle is complete, only a signature proves who made it.

Anyone who changes a file can also change its hash. A signature (Ed25519, RFC 8032) proves that the manifest, which
contains the hashes of all other files, is unchanged since the holder of a key signed it.
"""

import base64
import contextlib
import hashlib
import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from predictors.errors import MissingBackendError, StretchError, install_line
from predictors.files import read_bytes

SIGNATURE = "signature.json"
MAX_BYTES = 64 << 10

#: Prefix of the signed content, so that a signature is valid for no other kind of content.
_PURPOSE = b"nn-stretch bundle 1\n"
_KEY_HINT = "make one with `openssl genpkey -algorithm ed25519 -out key.pem`, and its public part with `openssl pkey -in key.pem -pubout`"


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signature file next to a bundle's manifest."""

    schema: Literal[1]  # Schema of this file.
    algorithm: Literal["ed25519"]  # Algorithm of the signature.
    key: str  # Public key of the signer, base64; only a hint, because anyone can write their key here.
    signature: str  # Signature of the manifest, base64.


def fingerprint(key: bytes) -> str:
    """Return a public key in readable form: ``SHA256:`` and the base64 of its hash, as in OpenSSH.

    Args:
        key: Public key of 32 bytes.
    """
    return f"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip('=')}"


def public_key(path: Path) -> bytes:
    """Return the 32 bytes of the Ed25519 public key in a PEM file."""
    raw: bytes = _key(path, "public").public_bytes_raw()
    return raw


def sign(folder: Path, description: bytes, key: Path) -> bytes:
    """Sign a bundle's manifest, write the signature next to it in one step, and return the public key.

    Args:
        description: Content of the bundle's `bundle.json`.
        key: PEM file (PKCS #8) of an Ed25519 private key without a password.
    """
    private = _key(key, "private")
    public: bytes = private.public_key().public_bytes_raw()
    signature = Signature(schema=1, algorithm="ed25519", key=_text(public), signature=_text(private.sign(_PURPOSE + description)))
    _write(folder / SIGNATURE, msgspec.json.format(msgspec.json.encode(signature), indent=1))
    return public


def check_signature(folder: Path, description: bytes, keys: Sequence[bytes]) -> bytes:
    """Return the trusted key that signed a bundle's manifest."""
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
