#!/bin/sh
# The Go tests and a part of the JavaScript tests with arm64 programs under qemu. The processes that the tests look for
# have qemu and its two words in front of their command lines in /proc; what decides by command lines alone is left out.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../../.." && pwd)
cd "$repository"
QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
export QEMU_LD_PREFIX
failed=0

echo "arm64: Go tests"
GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go test -timeout 10m \
	./go/internal/exit ./go/internal/lock ./go/internal/record ./go/internal/spec ./go/internal/verdict ./go/internal/hostpid || failed=1

for version in 22 24; do
	node=$("${NODE:-node}" test/support/node-versions.mjs "$version" linux arm64)
	echo "arm64: node $version"
	"$node" test/support/arm64/smoke.mjs || failed=1
done
exit $failed
