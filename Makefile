# Every target sets the project up first, on a machine that has nothing but Python 3.11 or newer and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
DEVELOP := $(VENV)/installed-to-develop
VLLM := .venv-vllm
VLLM_INSTALLED := $(VLLM)/installed
VERIFIERS := .venv-verifiers
# Tests are many and small: processes with one thread each use two cores better than one process with two threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal
# What a run of the tests compiled is there for the next one, which begins 10 s earlier.
export PYTHONDONTWRITEBYTECODE :=
# OPTIONS="--strict-skips" and the like reach pytest.
OPTIONS ?=
TIER = @$(BIN)/python tests/tiers.py

.PHONY: help setup develop vllm verifiers quickstart test test-slow test-learning test-vllm test-verifiers costs lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   set up, then train and evaluate a small model on this machine"
	@echo "make test         set up, then lint, type check and the fast tests"
	@echo "make test-slow    set up, then the tests that cost more: processes, browsers, clusters, small training runs"
	@echo "make test-learning  set up, then the runs that train to a reward"
	@echo "make vllm         set up an environment of its own with vLLM for CPUs, for --generator vllm (4 GB)"
	@echo "make test-vllm    the same, then the tests over a real vLLM"
	@echo "make test-verifiers  the tests over real tasksets of verifiers, in an environment of its own"
	@echo "make costs        set up, then all of these tests, and write into tests/costs.json what each costs"
	@echo "make lint         style and types only"
	@echo "make format       write the style into the files"
	@echo "make bench        set up, then the benchmarks"
	@echo "make clean        remove the environment and caches"

# The stamp is written last, so that an installation that was cut short is done again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is too old; Penstock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing (once; some minutes)"
	$(BIN)/pip install --quiet -c constraints.txt -e '.[math,gym,hub,control]'
	@touch $@

$(DEVELOP): $(INSTALLED)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,math,gym,hub,qlora,adam8bit,deepspeed,ray,feedback,postgres,serve,monitors,wandb,mlflow,tensorboard,trackio,s3,sweep,digits,control,envpool,mujoco,games,textarena,openenv]'
	@touch $@

setup: $(INSTALLED)

develop: $(DEVELOP)

# vLLM pins other versions of the same packages, so it lives apart. Of three packages that it names there is no build for CPUs here;
# it imports one of them where a model reads media.
$(VLLM_INSTALLED): pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM)
	@echo "installing vLLM (once; some minutes)"
	$(VLLM)/bin/pip install --quiet -r constraints-vllm.txt
	$(VLLM)/bin/pip uninstall --quiet --yes torchaudio torchcodec
	$(VLLM)/bin/python tools/torchvision_without_ops.py
	$(VLLM)/bin/pip install --quiet --no-deps -e .
	@touch $@

vllm: $(VLLM_INSTALLED)

quickstart: setup
	$(BIN)/penstock train quickstart

lint: develop
	$(BIN)/ruff check --no-cache --quiet .
	$(BIN)/ruff format --no-cache --quiet --check .
	$(BIN)/mypy

test: lint
	$(TIER) fast
	$(PYTEST) --tier fast $(OPTIONS)

test-slow: develop
	$(TIER) slow
	$(PYTEST) --tier slow $(OPTIONS)

test-learning: develop
	$(TIER) learning
	$(PYTEST) --tier learning --record-learned $(OPTIONS)

costs: develop
	$(PYTEST) -m "not vllm" --record-costs --record-learned $(OPTIONS)

test-vllm: vllm
	@$(VLLM)/bin/python tests/tiers.py vllm
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest --tier vllm $(OPTIONS) tests/contracts/test_generator_contract.py tests/serve/test_vllm.py \
	  tests/serve/test_vllm_adapters.py tests/serve/test_vllm_media.py tests/serve/test_vllm_run.py

# verifiers pins older versions of mcp and openai than the other extras take.
$(VERIFIERS)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/pip install --quiet "$$(grep ^torch== constraints.txt)" -e '.[verifiers]' pytest pytest-timeout hypothesis
	@touch $@

verifiers: $(VERIFIERS)/installed

test-verifiers: verifiers
	OMP_NUM_THREADS=1 $(VERIFIERS)/bin/python -m pytest tests/envs/test_verifiers_tasks.py

format: develop
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/algorithms_table.py

bench: develop
	$(BIN)/python benchmarks/vs_trl.py
	$(BIN)/python benchmarks/generation.py

clean:
	rm -rf $(VENV) $(VLLM) $(VERIFIERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
