# The Linux arm64 half of the Makefile: everything runs under qemu's user emulation.
.PHONY: qemu
qemu: cross ## qemu for arm64 and its binfmt entry, both from Debian (root)
	@command -v qemu-aarch64 > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user; }
	@test/support/arm64/binfmt.sh

.PHONY: test-arm64
test-arm64: qemu build-arm64 ## Go tests and JavaScript tests on Linux arm64, Node 22 and 24, under qemu
	@test/support/arm64/test.sh

.PHONY: build-arm64
build-arm64: cross node_modules/.installed
	@$(NODE) binding/build.mjs --target linux-arm64
