"""`stretch verify` and `stretch verify --sign`: problems of a bundle, its signature, and exit codes."""

import pytest

pytest.importorskip("cryptography")

from tests.scheduler.bundle.test_signature import write_keys


def test_problems_are_listed_and_the_exit_code_is_one(stretch, bundle_dir):
    (bundle_dir / "head.onnx").unlink()
    (bundle_dir / "stem.onnx").write_bytes(b"x")
    code, data, _ = stretch("verify", bundle_dir, "--json")
    assert code == 1
    assert data["ok"] is False
    assert len(data["problems"]) == 2
    code, out, _ = stretch("verify", bundle_dir)
    assert code == 1
    assert out.count("problem: ") == 2


def test_what_is_signed_verifies_and_runs_for_who_trusts_the_key(stretch, bundle_dir, tmp_path):
    current, shown = write_keys(tmp_path, "mine")
    code, data, _ = stretch("verify", bundle_dir, "--sign", current, "--json")
    assert (code, data["ok"], data["problems"]) == (0, True, [])
    assert data["max_error"] <= data["tolerance"]
    code, result, _ = stretch("verify", bundle_dir, "--trust", shown, "--json")
    assert (code, result["ok"], result["signer"]) == (0, True, data["signer"])
    code, out, _ = stretch("verify", bundle_dir, "--trust", shown)
    assert data["signer"] in out
    assert stretch("run", bundle_dir, "--trust", shown, "--repeat", 1, "--warmup", 0)[0] == 0


def test_other_key_is_a_problem_and_nothing_runs(stretch, bundle_dir, tmp_path):
    current, _ = write_keys(tmp_path, "mine")
    _, other = write_keys(tmp_path, "other")
    assert stretch("verify", bundle_dir, "--sign", current)[0] == 0
    code, data, _ = stretch("verify", bundle_dir, "--trust", other, "--json")
    assert (code, data["ok"], data["signer"]) == (1, False, None)
    code, _, err = stretch("run", bundle_dir, "--trust", other, "--repeat", 1, "--warmup", 0)
    assert code == 1
    assert "not signed with a key that is trusted" in err
