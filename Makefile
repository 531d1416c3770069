# Every target works on a machine with Go and this tree alone; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/sh

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
PREFIX   ?= /usr
DESTDIR  ?=
T        ?= 60s
PACKAGES ?= ./...
LDFLAGS  := -s -w -X colloid.net/internal/version.Stamped=$(VERSION)
PROGRAMS := ./cmd/colloid ./cmd/meshd ./cmd/runnerd ./cmd/runnerd-shim ./cmd/runnerd-wasm
DEMO     := bin/demo -bin bin

export CGO_ENABLED := 0

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: build
build: ## static programs in bin/, and the module of the examples
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ $(PROGRAMS) ./examples/hello
	GOOS=wasip1 GOARCH=wasm $(GO) build -trimpath -ldflags "-s -w" -buildmode=c-shared -o bin/hello.wasm ./examples/hello-wasm

.PHONY: demo
demo: build ## three cells, workloads of each kind, a death, a failover; KEEP=1 leaves it running
	@$(GO) build -o bin/ ./e2e/demo
	@$(DEMO) $(if $(KEEP),-keep)

.PHONY: demo-stop
demo-stop: ## stop and remove demos that were left running
	@$(GO) build -o bin/ ./e2e/demo
	@bin/demo -stop

.PHONY: test
test: ## every test this machine can run; says what was skipped and why
	$(GO) vet $(PACKAGES)
	@$(GO) test -json -timeout 20m $(PACKAGES) | $(GO) run ./internal/testreport

.PHONY: race
race: ## the tests under the race detector (needs a C compiler)
	@CGO_ENABLED=1 $(GO) test -race -short -json -timeout 20m $(PACKAGES) | $(GO) run ./internal/testreport

.PHONY: bench
bench: build ## figures of the core and of modules, one line each: BENCH name value
	cd bench && $(GO) run ./core && $(GO) run ./stream && $(GO) run ./runtimes && $(GO) run -ldflags=-checklinkname=0 ./giouring
	cd bench && $(GO) run ./wasm -bin ../bin
	@$(GO) test -run '^$$' -bench '^BenchmarkColdStart$$' -benchtime 200x ./runnerd/wasm | \
		awk '/ns\/op/ { printf "BENCH wasm_cold_ms %.2f\n", $$3 / 1e6 }'
	@$(GO) test -run '^$$' -bench '^BenchmarkContainerStart$$' -benchtime 1x ./runnerd | awk '/ms\/start/ { \
		for (i = 2; i < NF; i++) { if ($$(i + 1) == "ms/start") print "BENCH container_command_ms", $$i; \
			if ($$(i + 1) == "ms/cold") print "BENCH container_command_cold_ms", $$i } }'
	@$(GO) build -o bin/ ./e2e/vm
	@bin/vm -only netem -figures || { code=$$?; test $$code = 77; }

.PHONY: bench-packages
bench-packages: ## the Go benchmarks of all packages
	$(GO) test -run '^$$' -bench . -benchmem $(PACKAGES)

.PHONY: bench-cluster
bench-cluster: build ## 128 cells beside memberlist, failover, idle cost; ARGS="-only failover"
	cd bench && TMPDIR=$$(test -d /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp}) $(GO) run ./cluster -bin ../bin $(ARGS)

.PHONY: e2e
e2e: build ## the end-to-end tests alone, the long parts too
	COLLOID_E2E_LONG=1 $(GO) test -count=1 -v -timeout 60m ./e2e/...

.PHONY: vm
vm: ## the suites that need Linux 6.1 and control groups v2, in QEMU; says so where that cannot run
	@$(GO) build -o bin/ ./e2e/vm
	@bin/vm || { code=$$?; test $$code = 77; }

.PHONY: demo-ten
demo-ten: build ## the demo ten times in a row, as it is run by this user
	@$(GO) build -o bin/ ./e2e/demo
	@for round in 1 2 3 4 5 6 7 8 9 10; do \
		$(DEMO) > bin/demo.log 2>&1 || { cat bin/demo.log; echo "demo $$round of 10 failed"; exit 1; }; \
		sed -n "s/.*answer again, after the death: \(.*\)/demo $$round of 10 passed, failover: \1/p" bin/demo.log; \
	done

.PHONY: fuzz
fuzz: ## every fuzz target for T each (default 60s)
	@set -e; mkdir -p bin; cache=$$($(GO) env GOCACHE)/fuzz; \
	$(GO) list -f '{{.ImportPath}} {{.Dir}}' $(PACKAGES) | while read -r package directory; do \
		targets=$$(cd $$directory && sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(f \*testing.F).*/\1/p' *_test.go 2>/dev/null) || true; \
		test -n "$$targets" || continue; \
		$(GO) test -c -fuzz=Fuzz -o bin/fuzz.test $$package < /dev/null; \
		for target in $$targets; do \
			echo "fuzz $$package $$target for $(T)"; tries=0; \
			until (cd $$directory && $(CURDIR)/bin/fuzz.test -test.run '^$$' -test.fuzz "^$$target\$$" -test.fuzztime $(T) \
				-test.fuzzcachedir $$cache/$$package < /dev/null > $(CURDIR)/bin/fuzz.log 2>&1); do \
				tries=$$((tries + 1)); \
				if [ $$tries = 3 ] || ! grep -q '^ *context deadline exceeded$$' bin/fuzz.log || \
					grep -q 'Failing input' bin/fuzz.log; then cat bin/fuzz.log; exit 1; fi; \
				echo "once more: Go took the end of the time for a failure"; \
			done; tail -n 2 bin/fuzz.log; \
		done; \
	done; rm -f bin/fuzz.test bin/fuzz.log

.PHONY: lint
lint: ## gofmt, vet for amd64 and arm64, house rules
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
		if [ -n "$$unformatted" ]; then echo "not formatted with gofmt:"; echo "$$unformatted"; exit 1; fi
	GOARCH=amd64 $(GO) vet $(PACKAGES)
	GOARCH=arm64 $(GO) vet $(PACKAGES)
	cd bench && $(GO) vet ./...
	$(GO) test ./internal/house

.PHONY: install
install: build ## programs and shell completions below $(DESTDIR)$(PREFIX)
	install -D -m 0755 bin/colloid $(DESTDIR)$(PREFIX)/bin/colloid
	install -D -m 0755 bin/meshd $(DESTDIR)$(PREFIX)/lib/colloid/meshd
	install -D -m 0755 bin/runnerd $(DESTDIR)$(PREFIX)/lib/colloid/runnerd
	install -D -m 0755 bin/runnerd-shim $(DESTDIR)$(PREFIX)/lib/colloid/runnerd-shim
	install -D -m 0755 bin/runnerd-wasm $(DESTDIR)$(PREFIX)/lib/colloid/runnerd-wasm
	bin/colloid completion bash > bin/colloid.bash
	bin/colloid completion zsh > bin/_colloid
	bin/colloid completion fish > bin/colloid.fish
	install -D -m 0644 bin/colloid.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/colloid
	install -D -m 0644 bin/_colloid $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_colloid
	install -D -m 0644 bin/colloid.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/colloid.fish

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist

.PHONY: sim
sim: ## the simulated clusters that every change must pass; the first failure is shrunk and explained
	$(GO) run ./cmd/colloid-sim -set ci

.PHONY: sim-long
sim-long: ## new simulated clusters until stopped; SEED=n where to begin
	$(GO) run ./cmd/colloid-sim -set long -seed $(or $(SEED),1000000)

.PHONY: invariants
invariants: ## which tests hold which invariant and which flaw; fails if a landed one has none
	$(GO) run ./internal/invariants
