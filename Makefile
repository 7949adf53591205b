GO        ?= go
GOFMT     ?= gofmt
PKGS      ?= ./...
TESTFLAGS ?=
RACE      ?=
TIMEOUT   ?= 15m
BENCH     ?= .
BENCHTIME ?= 1s
COUNT     ?= 1
ROUNDS    ?= 200
INSTALL   ?= 1

TOOL      := $(GO) tool -modfile=.ci/tools.mod
RACEFLAG  := $(if $(filter-out 0,$(RACE)),-race)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

define HELP
make test            run every test, in random order   (RACE=1, TESTFLAGS='-run Name -v', PKGS=./bolt/...)
make servers         find the servers that tests start, install the missing ones (INSTALL=0 looks only)
make check           gofmt, vet, staticcheck, go mod tidy, import direction, house rules
make bench           run the benchmarks                (BENCH=Reserve, BENCHTIME=2s, COUNT=6, PKGS=...)
make bench-smoke     run every benchmark once, to see that it still works
make numbers AREA=X  measure the promised ratios; X is bolt, cli, postgres, redis, expiry, http or bench
make crash           kill -9 proof, the long way       (ROUNDS=200)
make faults          fault matrix on real servers      (ROUNDS=500)
make model           explicit-state model, in full
make vuln            known vulnerabilities in what the module links (needs the vulnerability database)
make help            this list
endef
export HELP

.PHONY: help
help:
	@printf '%s\n' "$$HELP"

.PHONY: servers
servers:
	@INSTALL='$(INSTALL)' sh internal/testdb/install.sh

# The tests of the command start it hundreds of times, and with the race detector each start takes a
# fifth of a second. So with RACE=1 those run with it that do something concurrently, and all without.
# A program with the race detector waits for a second before it ends, and tests start hundreds of
# them.
export GORACE := atexit_sleep_ms=20 $(GORACE)
TEST := $(GO) test -shuffle=on -count=1 -timeout $(TIMEOUT)

.PHONY: test
test: servers
ifeq ($(RACEFLAG)$(PKGS),-race./...)
	$(TEST) -race $(TESTFLAGS) $$($(GO) list ./... | grep -v '/cmd/idem$$')
	$(TEST) $(TESTFLAGS) ./cmd/idem
	$(TEST) -race -run '^Test(Each|Run|Kill)' ./cmd/idem
else
	$(TEST) $(RACEFLAG) $(TESTFLAGS) $(PKGS)
endif

.PHONY: check
check: check-fmt check-vet check-staticcheck check-tidy check-rules

.PHONY: check-fmt
check-fmt:
	@files=$$($(GOFMT) -l .) || exit 1; \
	if [ -n "$$files" ]; then \
		printf 'gofmt: these files are not formatted, run gofmt -w on them:\n%s\n' "$$files" >&2; \
		exit 1; \
	fi

.PHONY: check-vet
check-vet:
	$(GO) vet ./...

.PHONY: check-staticcheck
check-staticcheck:
	$(TOOL) staticcheck ./...

.PHONY: check-tidy
check-tidy:
	$(GO) mod tidy -diff

.PHONY: check-rules
check-rules:
	$(GO) test -count=1 -run '^Test(Imports|Lint)' .

.PHONY: bench
bench:
	$(GO) test -run='^$$' -bench='$(BENCH)' -benchmem -benchtime=$(BENCHTIME) -count=$(COUNT) $(TESTFLAGS) $(PKGS)

.PHONY: bench-smoke
bench-smoke:
	$(GO) test -run='^$$' -bench=. -benchtime=1x ./...

.PHONY: numbers
numbers:
	@[ -n "$(AREA)" ] || { echo 'usage: make numbers AREA=bolt|cli|postgres|redis|expiry|http|bench' >&2; exit 2; }
	$(GO) run ./internal/numbers -area $(AREA)

.PHONY: crash
crash:
	IDEM_CRASH_ROUNDS=$(ROUNDS) $(GO) test -run Crash -count=1 -timeout 30m -v ./internal/crashtest ./bolt

.PHONY: faults
faults: ROUNDS = 500
faults:
	IDEM_FAULT_ROUNDS=$(ROUNDS) $(GO) test -run Faults -count=1 -timeout 60m -v ./internal/crashtest

.PHONY: model
model:
	IDEM_MODEL=full $(GO) test -count=1 -timeout 30m -v ./internal/leasemodel

.PHONY: vuln
vuln:
	$(TOOL) govulncheck ./...
