# make install | demo | quick | test | docs | test-matrix | test-gpu | test-cluster | browser | shells | soak | coverage | audit
# Each target sets up what it needs; a second run is fast.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

.PHONY: install demo quick test types tests docs test-matrix test-gpu test-cluster browser shells soak coverage audit clean

install: $(READY)

# torch first and by its exact pin: any other request for it can resolve to a build of several gigabytes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "scse needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/scse demo

# The tests start Python hundreds of times, and the demo some: what it compiles is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# Workers with one thread each, because the tests are many and small; one more than two cores, because some tests wait.
# On a larger machine: make test WORKERS=8
WORKERS ?= 3
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

# For while you work, within a minute: the laws on the smallest shapes and what is as cheap. No test here starts a process.
QUICK := tests/test_laws.py tests/test_shapes.py tests/test_identities.py tests/test_golden.py tests/test_trajectory.py \
         tests/test_rivals.py tests/test_loss.py tests/test_dropout.py tests/test_accounting.py tests/test_files.py \
         tests/test_layers.py tests/problems/test_problems.py tests/suites/test_statistics.py \
         tests/suites/test_records.py tests/suites/test_paper_values.py tests/suites/test_paper_text.py

quick: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -n 2 $(QUICK)

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) -j2 types tests

# Beside each other, because a first look at all types takes a minute of one core.
types:
	$(BIN)/mypy
	$(BIN)/bandit -q -c pyproject.toml -r src

tests:
	$(PYTEST) -n $(WORKERS)

# The guides and the reference of the public names as pages, without a network: build/site/index.html
docs: $(READY)
	$(BIN)/python docs/site/build.py build/site

# The tests under every condition they must not depend on: threads, instruction sets, precision, order, users, load.
# Four runs of them, so four times as long; what it gave is in docs/operations.md.
test-matrix: $(READY)
	$(BIN)/python tests/matrix.py

# What waits for a GPU (docs/gpu.md). The pinned torch may be a build for CPUs: install one for the machine's CUDA first.
test-gpu: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m gpu -rs tests/gpu

# A suite on a real Slurm that it brings up on this machine (root, Debian's packages) and takes down again, through
# preemption, requeue, cancellation, time limits, a refusal and a lost coordinator. What it gave is in docs/operations.md.
test-cluster: $(READY)
	PYTHONPATH=tests:tests/cluster $(BIN)/python tests/cluster/scenarios.py

# A Chromium for the tests that look at pages; without one they are skipped.
browser:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update && apt-get install -y chromium; \
	else echo "install chromium with this system's packages (Debian: apt install chromium, as root)"; exit 1; fi

# The shells besides bash that completion is written for; without them the tests that ask them are skipped.
shells:
	@if command -v zsh && command -v fish; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update && apt-get install -y zsh fish; \
	else echo "install zsh and fish with this system's packages (Debian: apt install zsh fish, as root)"; exit 1; fi

# Which lines and branches the tests reach, those of the commands that they start included.
coverage: $(READY)
	$(PYTEST) -n $(WORKERS) --cov --cov-report=term-missing:skip-covered

# Known weaknesses of the pinned packages; needs a network that reaches the advisories.
audit: $(READY)
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.venv-audit/bin/pip-audit --no-deps --requirement constraints.txt

# The long form of the robustness tests: over 30,000 cases of bad input, forty writes of every command gone wrong, and
# damage in hundreds of places per file; and every family through torch's own compiler. Half an hour or so on two cores.
soak: $(READY)
	SCSE_FUZZ=3000 SCSE_KILLS=40 SCSE_DAMAGES=500 $(PYTEST) -n $(WORKERS) tests/robustness
	SCSE_COMPILED=all $(PYTEST) -n $(WORKERS) tests/devices/test_compilation.py

clean:
	rm -rf $(VENV) .venv-audit .mypy_cache .ruff_cache .pytest_cache build
