# ironbng: what a person types. `make help` lists it.
SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)

CARGO ?= cargo
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# Where end-to-end tests and the demo find the daemons.
export BNG_BIN_DIR := $(abspath $(TARGET)/release)

.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-down test test-loom lint fmt clippy deny bench bench-coalescing bench-sessions bench-wire

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## install what is needed on Debian 12 (root; quick when all is there)
	@scripts/setup

build: ## release build of every program, into target/release
	$(CARGO) build --release --workspace --bins

demo: setup ## the whole appliance on this machine (root); KEEP=1 leaves it up
	$(CARGO) build --release -p bng-dataplane -p bng-controlplane -p bngctl -p bng-lab --bins
	@$(BNG_BIN_DIR)/bng-lab demo $(if $(KEEP),--keep)

demo-down: ## end a demo that was left up, remove remains of a killed one
	@if [ -x $(BNG_BIN_DIR)/bng-lab ]; then $(BNG_BIN_DIR)/bng-lab down; else echo "nothing is built, so no demo is up"; fi

test: ## all tests: unit, property, loom, documentation, end to end (root)
	@scripts/setup test
	$(MAKE) build
	$(CARGO) nextest run --workspace
	$(CARGO) test --workspace --doc
	$(MAKE) test-loom

# Model checks of the shared-memory protocols with loom, which must also fail when an ordering is weakened.
test-loom:
	sh dataplane/shm/tests/weaken.sh

lint: fmt clippy deny ## format, clippy with warnings as errors, licences and sources of dependencies

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Without `advisories`: that check fetches a Git repository at run time, so the same commit could pass today and fail
# tomorrow. See deny.toml for how to run it.
deny:
	@$(CARGO) deny --version >/dev/null 2>&1 || { echo "installing cargo-deny (some minutes)"; $(CARGO) install cargo-deny --locked; }
	$(CARGO) deny check bans licenses sources

bench: ## the benchmark grid into perf/results (root); BENCH=quick is short, into perf/results/quick
	$(CARGO) build --release -p bng-perf
	$(BNG_BIN_DIR)/bng-perf bench $(if $(filter quick,$(BENCH)),--quick --results perf/results/quick,--results perf/results)

bench-coalescing: ## what coalescing is worth where packets are expensive, into perf/results (root)
	$(CARGO) build --release -p bng-perf -p bng-dataplane
	$(BNG_BIN_DIR)/bng-perf downloads --results perf/results

bench-sessions: ## setups per second, many sessions, memory, floods and churn of the whole gateway, into perf/results (root)
	$(CARGO) build --release -p bng-perf -p bng-dataplane -p bng-controlplane
	$(BNG_BIN_DIR)/bng-perf sessions --results perf/results

bench-wire: ## packets through a running dataplane on memory ports: rate without loss, latency (root)
	$(CARGO) build --release -p bng-perf -p bng-dataplane
	@for bytes in 64 512 1492; do \
		$(BNG_BIN_DIR)/bng-perf wire --search --attempts 3 --seconds 2 --sessions 1000 --flows 10000 --ip-bytes $$bytes || exit 1; \
	done
