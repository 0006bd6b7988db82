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
.PHONY: help run build web test test-long web-test browser-test screens live-size scoreboard matrix bench fuzz fmt clean setup $(BIN)

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## install what is missing, build, and start relay and agent for this machine
	@scripts/setup run
	@$(MAKE) --no-print-directory build
	@exec $(BIN) up $(ARGS)

build: $(BIN) ## build bin/holdfast

# go decides what is up to date, so the target is phony.
$(BIN): web
	@[ -e $(BIN) ] || echo "building $(BIN): the first time takes a minute or two"
	$(GO) build -trimpath -o $(BIN) ./cmd/holdfast

web: ## build the page for phones, which the program serves; says its digest
	@scripts/web page

test: ## all four floors of tests; installs the tools they need; a little more than half an hour on two cores
	@scripts/setup test
	@scripts/test

test-long: ## the long waits, the gigabytes and the tens of thousands, after `make test`
	@scripts/setup test
	@scripts/test --long

web-test: ## check, build and test the browser packages
	@scripts/web test

browser-test: build ## the page in a real Chromium against the built program, sshd and tmux
	@scripts/setup test
	@scripts/browser test

screens: build ## screenshots of the page into docs/screens
	@scripts/setup test
	@scripts/browser screens

live-size: ## the size of the browser client, which fails over its limits
	@scripts/web size

scoreboard: ## web/live beside published clients through the same faults, into its README; 10 minutes
	@scripts/web scoreboard

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
	rm -rf bin dist web/live/dist web/live/build web/ssh/dist web/ssh/build web/app/dist web/app/dist-test
	find internal/webapp/dist -mindepth 1 ! -name README -delete
