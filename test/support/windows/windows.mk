# The Windows half of the Makefile: everything runs under Wine, in a chroot.
.PHONY: wine
wine: ## a Debian 13 with Wine 10, and node.exe 22 and 24, in .cache/wine (root)
	@test/support/windows/setup.sh

.PHONY: build-windows
build-windows: node_modules/.installed
	@$(NODE) binding/build.mjs --target win32-x64

.PHONY: test-windows
test-windows: wine build-windows ## the Windows tests under Wine; PG_FULL=1 for every round
	@test/support/windows/test.sh
