# Everything that a clone needs beyond Go, a C compiler and Node is fetched by the
# targets themselves: npm packages into node_modules/, other Node versions and the
# services of the tests into .cache/.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

NODE ?= node
# The version that `make test` runs on, and those of `make test-matrix`.
TEST_NODE ?= 22
MATRIX := 20 22 24 26

GOFUMPT := mvdan.cc/gofumpt@v0.12.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
PLATFORMS := linux darwin windows

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

node_modules/.installed: package.json package-lock.json
	npm install --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: build
build: node_modules/.installed ## the addon, the library, the keeper and the reaper, into prebuilds/
	@$(NODE) binding/build.mjs

# The same with the fault hooks that the tests use, into prebuilds-fault/.
.PHONY: build-fault
build-fault: node_modules/.installed
	@$(NODE) binding/build.mjs --tags fault

# What the package carries, and the cross compilers that this takes, by their names in Debian.
TARGETS := linux-x64 linux-arm64 win32-x64
CROSS := aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu x86_64-w64-mingw32-gcc=gcc-mingw-w64-x86-64

.PHONY: prebuilds
prebuilds: cross node_modules/.installed ## the native part for every platform of a release; sizes at the end
	@for target in $(TARGETS); do $(NODE) binding/build.mjs --target $$target; done
	@du --apparent-size --block-size=kB prebuilds/*/* | sort -k 2

.PHONY: cross
cross:
	@missing=; for pair in $(CROSS); do \
		command -v "$${pair%%=*}" > /dev/null || missing="$$missing $${pair#*=}"; \
	done; \
	[ -e /usr/aarch64-linux-gnu/include/stdio.h ] || missing="$$missing libc6-dev-arm64-cross"; \
	[ -z "$$missing" ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; }

.PHONY: pack
pack: prebuilds ## the tarball of a release
	npm pack

.PHONY: pack-test
pack-test: export PG_PACK := 1
pack-test: prebuilds ## installs the tarball by npm, pnpm and yarn, and uses it on Node 20, 22, 24 and 26; two builds compared
	@$(NODE) test/run.mjs --only test/package --node $(call node-binary,$(TEST_NODE))

.PHONY: demo
demo: build ## the main job, live in this terminal, in under 40 s
	@$(NODE) examples/demo/demo.js

.PHONY: test
test: build build-fault services ## all tests, JavaScript on Node 22, with a closing count
	@$(NODE) test/run.mjs --go --fuzz 2 --node $(call node-binary,$(TEST_NODE))

.PHONY: test-full
test-full: export PG_FULL := 1
test-full: test ## the same with every round of the long races

.PHONY: test-matrix
test-matrix: export PG_STORM_SECONDS := 60
test-matrix: build build-fault services ## the JavaScript tests on Node 20, 22, 24 and 26
	@$(NODE) test/run.mjs $(foreach version,$(MATRIX),--node $(call node-binary,$(version)))

node-binary = "$$($(NODE) test/support/node-versions.mjs $(1))"

# The page of the example component, in a real browser. `make test` leaves it out where there is none.
.PHONY: test-page
test-page: build ## the example's page in headless Chromium, which is installed if need be (Debian, as root)
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	@$(NODE) test/run.mjs --only test/browser --node $(call node-binary,$(TEST_NODE))

# Programs that the tests guard, without their system services.
.PHONY: services
services:
	@$(NODE) test/support/fetch-services.mjs

# A part of it is in `make test`. ARGS="--only keep/", "--seconds 600", "--replay '...'": see test/faults/faults.mjs.
.PHONY: faults
faults: build-fault ## every system call goes wrong in every way, in every scenario; half an hour
	@$(NODE) test/faults/faults.mjs $(ARGS)

.PHONY: stress
stress: build ## 2,000 workers and a minute of signals on every Node version, 2,000 workers under the sanitizers
	@for version in $(MATRIX); do \
		node=$$($(NODE) test/support/node-versions.mjs $$version); \
		$$node test/stress/churn.mjs --workers 2000; \
		$$node test/stress/storm.mjs --seconds 60 --to process; \
		$$node test/stress/storm.mjs --seconds 60 --to threads; \
	done
	@PG_FULL=1 $(NODE) test/run.mjs --only test/stress/sanitize --node $(call node-binary,$(TEST_NODE))

.PHONY: leaks
leaks: build ## 10,000 guard() calls, 100,000 synchronous ones, 2,000 workers: what the host keeps of them
	@$(call node-binary,$(TEST_NODE)) test/stress/leak.mjs

# Everything at once, by a seed that is printed; a violation prints it too, with the last actions.
.PHONY: chaos
chaos: SEED ?= 1
chaos: SECONDS ?= 60
chaos: build ## a minute of everything at once around one pidDir (SEED=, SECONDS=)
	@$(NODE) test/chaos/chaos.mjs --seed $(SEED) --seconds $(SECONDS)

.PHONY: soak
soak: SEED ?= 1
soak: SECONDS ?= 1800
soak: build ## half an hour of it, and what the host that lives through it holds before and after
	@$(NODE) test/chaos/chaos.mjs --seed $(SEED) --seconds $(SECONDS)

.PHONY: fuzz
fuzz: ## every fuzz target for 50 s: five minutes in all on two cores
	@$(NODE) test/run.mjs --fuzz 50

.PHONY: lint
lint: lint-go lint-c lint-js ## formatting, static checks and types of Go, C and JavaScript

.PHONY: lint-go
lint-go:
	@files=$$(go run $(GOFUMPT) -l go); [ -z "$$files" ] || { echo "gofumpt would change:"; echo "$$files"; exit 1; }
	go vet ./go/...
	go vet -tags fault ./go/...
	@for platform in $(PLATFORMS); do echo "vet for $$platform"; CGO_ENABLED=0 GOOS=$$platform go vet ./go/...; done
	go run $(STATICCHECK) ./go/...

# The addon for this platform is compiled with the same warnings as errors whenever
# it is built; the Windows loader is looked at where a compiler for it is installed.
C_STRICT := -std=c11 -Wall -Wextra -Werror -fsyntax-only
.PHONY: lint-c
lint-c: node_modules/.installed build
	@for file in test/fixtures/*.c; do $${CC:-cc} $(C_STRICT) $$file; done
	@if command -v x86_64-w64-mingw32-gcc > /dev/null; then \
		x86_64-w64-mingw32-gcc $(C_STRICT) -I node_modules/node-api-headers/include binding/addon.c binding/load_windows.c; \
	fi

.PHONY: lint-js
lint-js: node_modules/.installed
	npm run --silent lint:js

.PHONY: bench-quick
bench-quick: build ## start, restart and idle figures, p50 and max
	@$(NODE) test/bench/quick.mjs

.PHONY: clean
clean: ## removes what was built; .cache/ and node_modules/ stay
	rm -rf build prebuilds prebuilds-* types coverage

include test/support/arm64/arm64.mk
include test/support/windows/windows.mk
