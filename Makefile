.DEFAULT_GOAL := help
SHELL := /bin/bash

# Arguments go on with ARGS: make demo ARGS='--rows 50000 --kills 12 --seed 7'
ARGS ?=
# Two test processes: most of the suite waits for servers and restarts, not for a core.
WORKERS ?= 2

NEW := .ci/with .venv
OLD := .ci/with .venv-4.0

# JVMs of tests live for seconds to minutes. Without the second compiler they need half the CPU time,
# and half of that with Spark's classes in an archive (.ci/classes; it is ignored where it doesn't
# fit, and says so on standard output if it isn't told not to). Not for `bench`.
SHORT_LIVED = JDK_JAVA_OPTIONS='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off \
	-Xlog:cds+dynamic=off -XX:SharedArchiveFile=$(CURDIR)/.setup/classes-$(1).jsa'

.NOTPARALLEL:
.PHONY: help setup setup-test setup-bench demo test check compat suite soak bench failpoints clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup:  ## install what is missing (apt, .venv), and say so
	@.ci/setup

setup-test:
	@.ci/setup test

demo: setup  ## 336,776 real rows, real kills, both sinks, then the count of lost and doubled rows
	@$(NEW) spark-eoc demo $(ARGS)

test: setup-test check compat suite  ## what CI runs: checks, then the tests on both pysparks

check: setup  ## ruff and mypy
	@$(NEW) ruff check .
	@$(NEW) ruff format --check .
	@$(NEW) mypy

compat: setup-test  ## the source's and writers' tests on the oldest supported pyspark
	@$(call SHORT_LIVED,venv-4.0) $(OLD) pytest -n $(WORKERS) --dist loadfile -m 'compat and not slow and not bench' $(ARGS)

# The longest files first, so that no process is left alone with one at the end.
suite: setup  ## the whole default suite on the newest pyspark
	@$(call SHORT_LIVED,venv) $(NEW) pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

soak: setup-test  ## 400 kills at random, and all else that takes minutes; ARGS='-k batch-part1' is an eighth
	@$(call SHORT_LIVED,venv) $(NEW) pytest -s -m slow -n 0 $(ARGS)

failpoints: setup  ## each failpoint once for each sink, on real Spark, as a list
	@$(call SHORT_LIVED,venv) $(NEW) python -m spark_eoc.testing.failpoints $(ARGS)

setup-bench:
	@.ci/setup bench

bench: setup-bench  ## the figures of the README, as ratios measured side by side (quiet machine, please)
	@$(NEW) python tests/bench/run.py $(ARGS)

clean:  ## remove what the targets above made
	rm -rf .venv .venv-4.0 .setup build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
		.hypothesis spark-warehouse metastore_db derby.log
	find spark_eoc tests -name __pycache__ -prune -exec rm -rf {} +
