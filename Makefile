# The front door. `make help` is the manual; nothing needs to be installed beforehand but Python 3.11 or newer.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
SEEDS ?= 100
# Empty is "no": compiled modules are kept. Without them every process that a test starts compiles all it imports, a third of a second.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-long compat compat-all compat-risingwave compat-wire lint format docs sim faults bench proto clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

# One stamp for what the demo needs, one for everything; both are remade only when one of these changes.
INSTALLED_FROM := pyproject.toml tools/install hatch_build.py src/magnetar/wire/pulsar/_kernel.c
$(VENV)/.demo: $(INSTALLED_FROM)
	@PYTHON="$(PYTHON)" tools/install $(VENV) demo
	@touch $@

$(VENV)/.dev: $(INSTALLED_FROM)
	@PYTHON="$(PYTHON)" tools/install $(VENV) dev
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## 336,776 real flights through a real server, checked to the last message, and views of them on Spark (three minutes at most)
	@$(BIN)/magnetar demo flights $(ARGS)

test: $(VENV)/.dev ## Every normal test; ARGS="-k name" narrows it
	@$(BIN)/python -m pytest -n auto $(ARGS)

test-long: $(VENV)/.dev ## The tests that take minutes as well
	@$(BIN)/python -m pytest -n auto --run-long $(ARGS)

compat: $(VENV)/.dev ## The official client's own suite against this server; PULSAR_CLIENT_PYTHON=DIR says where it lies
	@PULSAR_CLIENT_PYTHON="$(PULSAR_CLIENT_PYTHON)" $(BIN)/python tools/compat.py $(ARGS)

compat-all: $(VENV)/.dev ## The own tests of the Go client, its admin package and pulsar-rs, and Java scenarios; ARGS names one of them
	@$(BIN)/python tools/compat_others.py $(ARGS)

compat-risingwave: $(VENV)/.dev ## RisingWave's own SQL files through PostgreSQL's protocol; RISINGWAVE=DIR says where they lie, ARGS names some
	@RISINGWAVE="$(RISINGWAVE)" $(BIN)/python tools/compat_risingwave.py $(ARGS)

compat-wire: $(VENV)/.dev ## The same requests here and to an Apache Pulsar; PULSAR=HOST:PORT,HTTP-URL says where it is
	@$(BIN)/python tools/wire_differences.py --pulsar "$(PULSAR)" $(ARGS)

lint: $(VENV)/.dev ## Style, types, import contracts, sizes, generated code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/tidy.py
	@$(BIN)/python tools/proto.py --check

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## The documentation's site, into site/; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo "site/index.html"

sim: $(VENV)/.dev ## Simulated clusters under faults; SEEDS=1000, ARGS="--seed 7" replays one
	@$(BIN)/python -m magnetar.testing.sim --seeds $(SEEDS) $(ARGS)

faults: $(VENV)/.dev ## Real servers under kills, pauses, partitions, clock jumps and a full disk, against their promises; ARGS="--help"
	@$(BIN)/python -m bench.faults $(ARGS)

bench: $(VENV)/.dev ## Ratios against a yardstick, the least a durable server in Python has to do, in one run
	@$(BIN)/python bench/run.py $(ARGS)

proto: $(VENV)/.dev ## Generate the protobuf modules from the .proto files
	@$(BIN)/python tools/proto.py

clean: ## Remove what make made: the virtual environment and caches
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
