# Each target does its own set-up. `make` alone lists them.

PYTHON := .venv/bin/python
PROFILE ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench clean

help:  ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: .venv/.ready  ## Make .venv with everything in it (the other targets do this by themselves)

.venv/.ready: pyproject.toml constraints.txt scripts/setup.sh
	@bash scripts/setup.sh

# `exec`: a signal that make passes on must reach the program, not a shell that waits for it.
run: .venv/.ready  ## Start or resume training: make run [PROFILE=name] [ARGS="--set run.max_cycles=3"]
	@exec $(PYTHON) -m orchestrator run $(if $(PROFILE),--profile $(PROFILE)) $(ARGS)

test: .venv/.ready  ## Run the tests: make test [ARGS="tests/profiles -k typo"]
	@exec $(PYTHON) -m pytest -n 2 $(ARGS)

lint: .venv/.ready  ## Check style, format and types
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

bench: .venv/.ready  ## Print the figures: make bench [ARGS=name]
	@exec $(PYTHON) -m benchmarks $(ARGS)

clean:  ## Remove .venv and caches; runs/ stays
	@rm -rf .venv .venv.lock build dist *.egg-info .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
