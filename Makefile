# Needs Python 3.11 or newer with venv, and make; everything else lands in .venv.
PYTHON ?= python3
BIN := .venv/bin
MODEL ?= resnet50
DEVICE ?= pixel6
# what `make install` brings: everything for development, or `base`, which runs bundles without PyTorch
EXTRAS ?= dev
# processes that share the tests; a file's tests stay together
WORKERS ?= 2
# without compiled bytecode each of the many processes of the tests compiles torch and its packages anew
unexport PYTHONDONTWRITEBYTECODE
BUNDLE := runs/$(MODEL)_$(DEVICE)

.PHONY: help install demo test slow timing plain explore lint docs site lock release clean

help:
	@echo "make install  create .venv with pinned packages and this project, 6 GB; EXTRAS=base: 0.3 GB, without PyTorch"
	@echo "make demo     branch $(MODEL) for $(DEVICE), then run the bundle on this machine"
	@echo "make test     lint, types, import contracts, fast tests"
	@echo "make slow     the tests that take longer"
	@echo "make timing   the tests that time this machine, which should be quiet"
	@echo "make plain    tests of what only Linux has, with the form that every system has"
	@echo "make explore  the tests of invariants with many random examples, in random order"
	@echo "make docs     write the references of the command line and of Python and the result tables anew"
	@echo "make site     the pages of docs and experiments as a site in the folder site"
	@echo "make lock     resolve requirements/*.lock anew"
	@echo "make release  build the wheel and the sdist, and try both with every Python found here, also with torch"
	@echo "make clean    remove .venv, runs and caches"

install: .venv/installed

# uv comes first, with the hashes of the lock, because it resolves torch's packages as they were locked.
$(BIN)/uv: requirements/dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: nn-stretch needs Python 3.11 or newer; set PYTHON=…")'
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.lock > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	touch $@

# uv does not read pip's settings: hand over the certificate and the index, where pip has one.
PIP_SETTING = $$($(BIN)/python -m pip config list | sed -n "s/^[^=]*\.$(1)='\(.*\)'$$/\1/p" | tail -n 1)
LIKE_PIP = \
	cert="$(call PIP_SETTING,cert)"; [ -z "$$cert" ] || export SSL_CERT_FILE="$${SSL_CERT_FILE:-$$cert}"; \
	index="$(call PIP_SETTING,index-url)"; [ -z "$$index" ] || export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$index}";

.venv/installed: $(BIN)/uv requirements/dev.lock pyproject.toml
	@echo "installing requirements/$(EXTRAS).lock into .venv: $(if $(filter base,$(EXTRAS)),about 0.3 GB,about 6 GB (EXTRAS=base: 0.3 GB, without PyTorch))"
	@$(LIKE_PIP) set -x; $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/$(EXTRAS).lock
	@$(LIKE_PIP) set -x; $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps $(if $(filter base,$(EXTRAS)),,--no-build-isolation) -e .
	touch $@

demo: install
	$(BIN)/stretch branch $(MODEL) --device $(DEVICE) --out $(BUNDLE)
	$(BIN)/stretch run $(BUNDLE)

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.lint

PYTEST = $(BIN)/python -m pytest -q
SHARED = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# the same examples in the same order every time
test: lint
	$(PYTEST) -p no:randomly -m "openvino and not slow" tests/scheduler/delegates tests/scheduler/tools/delegates
	$(PYTEST) -p no:randomly -m "not openvino and not slow" $(SHARED) --durations=20

slow: install
	$(PYTEST) --runslow -m "slow and openvino" tests/scheduler/delegates tests/scheduler/tools/delegates
	$(PYTEST) --runslow -m "slow and not openvino and not timing" $(SHARED)

# one after the other: another test beside it would slow the machine down
timing: install
	$(PYTEST) --runslow -m timing

# a failure prints the example, and the seed of the order, that reproduce it
explore: install
	HYPOTHESIS_PROFILE=explore $(PYTEST) -m "hypothesis and not slow and not openvino" $(SHARED)

# files that share memory, hold folders, end processes and run bundles
plain: install
	NN_STRETCH_SYSTEM=plain $(PYTEST) -p no:randomly -m "not slow" tests/predictors/test_files.py tests/predictors/formats/test_onnx.py \
		tests/scheduler/delegates/test_base.py tests/scheduler/bundle/test_load.py tests/stretch/export/test_staging.py \
		tests/stretch/cli/test_run.py::test_answer_has_ratios_with_intervals_checked_results_throughput_and_a_trace

docs: install
	$(BIN)/python docs/make_cli_reference.py
	$(BIN)/python docs/make_python_reference.py
	$(BIN)/python docs/make_bands_picture.py
	$(BIN)/python -m experiments.render

# a dead link or a page that the order lacks ends it; the theme tells of its successor at every start
site: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet

lock: $(BIN)/uv
	$(COMPILE) --upgrade -o requirements/base.lock
	$(COMPILE) --upgrade --extra dev -o requirements/dev.lock

release: install
	$(BIN)/python -m tools.release

clean:
	rm -rf .venv runs site .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
