"""`stretch verify` and `stretch verify --sign`: problems of a bundle, its signature, and exit codes."""

import pytest

pytest.importorskip("cryptography")

from tests.scheduler.bundle.test_signature import write_keys


def test_problems_are_listed_and_the_exit_code_is_one(stretch, bundle_dir):
    (bundle_dir / "head.onnx").unlink()
    (bundle_dir / "stem.onnx").write_bytes(b"x")
    code, data, _ = stretch("verify", bundle_dir, "--json")
    assert (code, data["ok"], len(data["problems"])) == (1, False, 2)
    code, out, _ = stretch("verify", bundle_dir)
    assert (code, out.count("problem: ")) == (1, 2)


def test_what_is_signed_verifies_and_runs_for_who_trusts_the_key_and_for_nobody_else(stretch, bundle_dir, tmp_path):
    (current, shown), (_, other) = write_keys(tmp_path, "mine"), write_keys(tmp_path, "other")
    code, data, _ = stretch("verify", bundle_dir, "--sign", current, "--json")
    assert (code, data["ok"], data["problems"]) == (0, True, [])
    assert data["max_error"] <= data["tolerance"]
    code, result, _ = stretch("verify", bundle_dir, "--trust", shown, "--json")
    assert (code, result["ok"], result["signer"]) == (0, True, data["signer"])
    assert data["signer"] in stretch("verify", bundle_dir, "--trust", shown)[1]
    run = ("run", bundle_dir, "--repeat", 1, "--warmup", 0, "--trust")
    assert stretch(*run, shown)[0] == 0
    code, data, _ = stretch("verify", bundle_dir, "--trust", other, "--json")
    assert (code, data["ok"], data["signer"]) == (1, False, None)
    code, _, err = stretch(*run, other)
    assert (code, "not signed with a key that is trusted" in err) == (1, True)
