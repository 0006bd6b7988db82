# Holdfast. `make help` lists the targets; scripts/ holds what they run.
#
# Everything is built into bin/. Tests write only into temporary directories.

GO      ?= go
BIN     := bin/holdfast
# Arguments for `make run`, for example: make run ARGS="--listen 127.0.0.1:0"
ARGS    ?=
# What `make fuzz` gives each fuzz target.
FUZZTIME ?= 20s

.DEFAULT_GOAL := help
.PHONY: help run build test test-long web-test live-size matrix bench fuzz fmt clean setup $(BIN)

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## install what is missing, build, and start relay and agent for this machine
	@scripts/setup run
	@$(MAKE) --no-print-directory build
	@exec $(BIN) up $(ARGS)

build: $(BIN) ## build bin/holdfast

# go decides what is up to date, so the target is phony.
$(BIN):
	$(GO) build -trimpath -o $(BIN) ./cmd/holdfast

test: ## all four floors of tests; installs the tools they need, under 20 minutes on two cores
	@scripts/setup test
	@scripts/test

test-long: ## the long waits, the gigabytes and the tens of thousands, after `make test`
	@scripts/setup test
	@scripts/test --long

web-test: ## check, build and test the browser packages
	@scripts/web test

live-size: ## the size of the browser client, which fails over its limits
	@scripts/web size

matrix: ## the table of faults on both floors: what happens, how soon, what the person sees
	@HOLDFAST_MATRIX=1 $(GO) test -count=1 -timeout 10m -run '^TestMatrix' ./internal/scenario

bench: ## the figures of docs/performance.md, measured on this machine
	@scripts/bench

fuzz: ## every fuzz target for FUZZTIME (20s) each, new inputs kept in the Go build cache
	@scripts/fuzz $(FUZZTIME)

fmt: ## format the Go code
	gofmt -w $$(git ls-files '*.go')

setup: ## install the tools that tests need, and nothing else
	@scripts/setup test

clean: ## remove what was built
	rm -rf bin dist web/*/dist web/*/build
