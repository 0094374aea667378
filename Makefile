# Each target does its own set-up. `make` alone lists them.

# Not `PYTHON`: that names the interpreter for a new .venv, and make would hand its own value to scripts/setup.sh.
python := .venv/bin/python
PROFILE ?=
ARGS ?=
# Processes that run tests, one more than processors, because many tests wait for processes of their own. One that has no
# tests left takes some of another.
JOBS ?= $(shell expr $$(nproc) + 1)

.DEFAULT_GOAL := help
.PHONY: help setup run quick test test-exhaustive faults reliability soak test-as-user test-portable lint site tutorial bench clean

# What may differ between root and a user: processes, permission bits, terminals, what a machine grants. Left out is what
# takes minutes and has nothing of that.
AS_USER := tests/workers/sandbox tests/state tests/test_packaging.py tests/test_as_user.py \
	$(addprefix tests/orchestrator/test_, doctor.py preflight.py status.py packages.py control.py environment.py) \
	$(addprefix tests/faults/test_, copies.py groups.py locks.py paths.py refusals.py terminal.py)
# What computes with floating-point numbers and compares them, but for whole runs: their digests are those of one machine.
NUMERICAL := $(addprefix tests/workers/test_, \
	update.py out_of_memory.py importance.py native_engine.py float32_exactness.py) \
	$(addprefix tests/workers/loss/test_, policy.py fused_head.py fused_loss.py) \
	$(addprefix tests/workers/models/test_, \
	adapters.py attention.py fused_layers.py fast_layers.py fast_stack.py lora.py optimizer.py packing.py stream.py) \
	$(addprefix tests/workers/grpo/test_, group_update.py one_pass.py) tests/workers/rollout/test_graph_engine.py

# Tests of the whole tree, and files of tests that name no process, sandbox, tensor library or tiny model: they start no
# daemon and no worker, and load no model.
QUICK = $(wildcard tests/test_*.py) \
	$(shell grep -rLE --include="test_*.py" "subprocess|harness|torch|transformers|tiny_model|write_model|Sandbox|scene" tests/profiles tests/state tests/orchestrator tests/workers tests/python_package)

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/.ready  ## Make .venv with everything in it (the other targets do this by themselves)

.venv/.ready: pyproject.toml constraints.txt scripts/setup.sh
	@bash scripts/setup.sh

# `exec`: a signal that make passes on must reach the program, not a shell that waits for it.
run: .venv/.ready  ## Start or resume training: make run [PROFILE=name] [ARGS="--set run.max_cycles=3"]
	@exec $(python) -m orchestrator run $(if $(PROFILE),--profile $(PROFILE)) $(ARGS)

quick: .venv/.ready  ## Run the tests of units, architecture and documents, in two minutes: make quick [ARGS="-k typo"]
	@exec $(python) -m pytest -n $(JOBS) --dist worksteal -m "not slow and not exhaustive" $(QUICK) $(ARGS)

test: .venv/.ready  ## Run the tests: make test [ARGS="tests/profiles -k typo"]
	@exec $(python) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-exhaustive: .venv/.ready  ## Run the tests that `make test` leaves out: more hits, parts and models of the same kind
	@exec $(python) -m pytest -n $(JOBS) --dist worksteal -m exhaustive $(ARGS)

faults: .venv/.ready  ## Run all tests of crashes, power cuts and refusals, every case of them: hours on two cores
	@exec $(python) -m pytest -n $(JOBS) --dist worksteal -m "exhaustive or not exhaustive" tests/faults tests/state $(ARGS)

reliability: .venv/.ready  ## Run the tests of faults, EXHAUSTIVE=1 for all their cases, and write docs/reliability.md
	@$(python) -m pytest -n $(JOBS) --dist worksteal $(if $(EXHAUSTIVE),-m "exhaustive or not exhaustive") --junitxml .venv/faults.xml $(if $(FAULTS),$(patsubst %,tests/faults/%.py,$(FAULTS)),tests/faults); \
		failed=$$?; $(python) -m tests.faults.table .venv/faults.xml docs/reliability.md; exit $$failed

soak: .venv/.ready  ## Look for what grows in a long run: 20,000 cycles and 2 hours of pocket, about four hours
	@exec $(python) -m benchmarks soak $(ARGS)

test-as-user: .venv/.ready  ## As root: run the tests of sandbox, faults and permissions again, as an ordinary user
	@exec bash scripts/as-user.sh $(python) -m pytest -n $(JOBS) --dist worksteal $(or $(ARGS),-m "not slow and not exhaustive" $(AS_USER))

# Both names: PyTorch packs for AMX where oneDNN finds it, and its plain kernels then refuse bfloat16 attention.
test-portable: .venv/.ready  ## Run the numerical tests again with PyTorch's plainest kernels and one thread
	@ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 exec $(python) -m pytest -n $(JOBS) --dist worksteal $(or $(ARGS),$(NUMERICAL))

lint: .venv/.ready  ## Check style, format, types and the messages of commits
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy
	@$(python) scripts/check_commits.py

site: .venv/.ready  ## Make the documentation a site in site/, and check its links: open site/index.html
	@exec $(python) -m mkdocs build --strict

tutorial:  ## Follow docs/tutorial.md word by word in a fresh clone: ten minutes
	@exec python3 scripts/tutorial.py $(ARGS)

bench: .venv/.ready  ## Print the figures: make bench [ARGS=name]
	@exec $(python) -m benchmarks $(ARGS)

clean:  ## Remove .venv and caches; runs/ stays
	@rm -rf .venv .venv.lock build site dist *.egg-info .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
