import os
import re
import subprocess

import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle, sign_bundle
from scheduler.bundle.signature import SIGNATURE, fingerprint, public_key
from scheduler.checks.verify import verify_bundle
from tests.corpus import mutations

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa


def write_keys(folder, name, private=None):
    """Write a new key pair; return the private and the public file."""
    private, pem = private or ed25519.Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private_file, public_file = folder / f"{name}.pem", folder / f"{name}.pub"
    private_file.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public_file.write_bytes(private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private_file, public_file


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path, "mine")


def test_replaced_file_with_a_new_hash_is_complete_but_not_signed(bundle_dir, keys):
    sign_bundle(bundle_dir, keys[0])
    (bundle_dir / "stem.onnx").write_bytes(mutations.weights_negated((bundle_dir / "stem.onnx").read_bytes()))
    mutations.hashed(bundle_dir, "stem.onnx")
    assert load_bundle(bundle_dir, check_hashes=True).signer is None
    with pytest.raises(StretchError, match="not signed"):
        load_bundle(bundle_dir, trust=keys[1])
    assert "not signed" in verify_bundle(bundle_dir, [keys[1]]).problems[0]


def test_one_matching_key_of_several_is_enough_and_a_wrong_key_is_not(bundle_dir, keys, tmp_path):
    other = write_keys(tmp_path, "other")
    sign_bundle(bundle_dir, keys[0])
    assert load_bundle(bundle_dir, trust=[other[1], keys[1]]).signer == fingerprint(public_key(keys[1]))
    with pytest.raises(StretchError, match="not signed"):
        load_bundle(bundle_dir, trust=other[1])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema": 2}', b"[" * 50_000, b'{"schema":1,"algorithm":"ed25519","key":"","signature":"?"}']
)
def test_damaged_or_missing_signature_is_refused(bundle_dir, keys, content):
    (bundle_dir / SIGNATURE).write_bytes(content)
    with pytest.raises(StretchError, match="damaged"):
        load_bundle(bundle_dir, trust=keys[1])
    assert load_bundle(bundle_dir).signer is None
    (bundle_dir / SIGNATURE).unlink()
    with pytest.raises(StretchError, match=f"not signed.*{SIGNATURE}"):
        load_bundle(bundle_dir, trust=keys[1])


def test_invalid_key_and_damaged_bundle_are_refused_and_nothing_is_written(bundle_dir, keys, tmp_path):
    rsa_key = write_keys(tmp_path, "rsa", rsa.generate_private_key(65537, 2048))
    before = sorted(os.listdir(bundle_dir))
    invalid_files = (bundle_dir / "bundle.json", tmp_path / "nowhere")
    for function, *refused_files in (
        (sign_bundle, keys[1], rsa_key[0], *invalid_files),
        (lambda folder, key: load_bundle(folder, trust=key), keys[0], rsa_key[1], *invalid_files),
    ):
        for file in refused_files:
            with pytest.raises(StretchError, match=re.escape(str(file))):
                function(bundle_dir, file)
    assert sorted(os.listdir(bundle_dir)) == before
    # a damaged bundle is not signed either
    (bundle_dir / "stem.onnx").write_bytes(b"x")
    with pytest.raises(StretchError, match=r"stem\.onnx has 1 bytes"):
        sign_bundle(bundle_dir, keys[0])
    assert not (bundle_dir / SIGNATURE).exists()


def test_keys_of_openssl_are_accepted(bundle_dir, tmp_path):
    private_file, public_file = tmp_path / "key.pem", tmp_path / "key.pub"
    try:
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private_file], check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", private_file, "-pubout", "-out", public_file], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl makes no keys of Ed25519 here")
    sign_bundle(bundle_dir, private_file)
    assert load_bundle(bundle_dir, trust=public_file).signer
