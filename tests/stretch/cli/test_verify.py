"""`stretch verify`: problems of a bundle, and an exit code."""


def test_whole_bundle_is_ok(stretch, bundle_dir):
    code, data, _ = stretch("verify", bundle_dir, "--json")
    assert code == 0
    assert data["ok"] is True
    assert data["problems"] == []
    assert data["max_error"] <= data["tolerance"]


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


def test_path_that_leads_outside_is_a_problem(stretch, bundles, bundle_dir):
    bundles.edit(bundle_dir, lambda m: m["files"].update({"../secret": m["files"]["stem.onnx"]}))
    code, data, _ = stretch("verify", bundle_dir, "--json")
    assert code == 1
    assert "not inside the bundle" in data["problems"][0]
