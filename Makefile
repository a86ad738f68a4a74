# Everything a fresh machine needs: Python >= 3.11, make and the package registries. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# Tests wait more than they compute: three files at a time on two cores, each with a Postgres and a Spark of its own.
JOBS ?= 3

.DEFAULT_GOAL := help
.PHONY: help install demo test again check lint format bench soak lock docs clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  \1\t\2/' | expand -t 12

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11"; echo "hint: install Python 3.11 or newer and say make PYTHON=python3.11"; exit 1; }
	@test -x $(PY) || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); } || \
	  { rm -rf $(VENV); echo "error: cannot create a virtual environment"; echo "hint: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "Installing packages (pinned and hashed, about 1.4 GB once)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

install: $(READY) ## Set up the virtual environment in .venv

demo: $(READY) ## Run the whole story on an embedded Postgres and a local warehouse
	@$(PY) -m modak.cli.main setup
	@$(PY) -m modak.cli.main demo $(ARGS)

test: $(READY) ## Run all tests, on real Postgres, Spark and Iceberg
	@$(PY) -m modak.cli.main setup
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS) || $(MAKE) --no-print-directory again status=$$?

# Three files at a time on two cores can starve a test of the seconds it waits for something. What failed is told above, runs once more
# with the machine to itself, and has to pass then: a failure that stays is real, and one that does not is a test to be mended.
again:
	@test "$(status)" = 1 || exit $(status)
	@echo "== What failed runs once more, alone"
	@$(PY) -m pytest --last-failed --last-failed-no-failures none --maxfail 20 $(ARGS)

check: lint test ## Lint, types and tests: the gate

lint: $(READY) ## Lint and check types
	@$(PY) -m ruff check src tests bench
	@$(PY) -m ruff format --check src tests bench
	@$(PY) -m mypy

format: $(READY) ## Format the code
	@$(PY) -m ruff check --fix --quiet src tests bench
	@$(PY) -m ruff format src tests bench

bench: $(READY) ## Measure the promises; prints ratios
	@for file in $(filter-out bench/__init__.py bench/support.py,$(wildcard bench/*.py)); do echo "== $$file"; $(PY) $$file || exit 1; done

soak: $(READY) ## Long runs of the ledger, of the oracle and of crash tests
	@$(PY) -m pytest -m soak $(ARGS)

docs: $(READY) ## Write the generated pages of docs/reference
	@$(PY) -m tests.docs.generate

lock: $(READY) ## Resolve dependencies anew into requirements.lock
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --extra dev \
	  pyproject.toml -o requirements.lock

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build
