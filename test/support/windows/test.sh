#!/bin/sh
# The Go tests and the end-to-end tests of test/windows under Wine, with the real
# node.exe 22 and 24. setup.sh first. PG_FULL=1: every round there is.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../../.." && pwd)
cache=$repository/.cache/wine
cd "$repository"
mkdir -p "$cache/tmp"

# A path as Windows sees it.
windows() { printf 'Z:%s' "$1" | tr / '\\'; }

echo "Windows: Go tests"
export GOTMPDIR="$cache/tmp"
# watch: Wine keeps the name of a directory that somebody has open.
for package in proc lock record spec exit; do
	GOOS=windows CGO_ENABLED=0 go test -timeout 10m -exec "$here/wine" "./go/internal/$package"
done
GOOS=windows CGO_ENABLED=0 go test -timeout 10m -exec "$here/wine" -run 'Machine|Table|Judge|Pause' ./go/internal/keep ./go/internal/reap
GOOS=windows CGO_ENABLED=0 go test -timeout 10m -exec "$here/wine" -run 'Wake|Name|Closed' ./go/internal/watch

GOOS=windows CGO_ENABLED=0 go build -o "$cache/runner.exe" ./test/support/windows/runner
GOOS=windows CGO_ENABLED=0 go build -o "$cache/process.exe" ./test/support/windows/process
PG_TEST_PROCESS=$(windows "$cache/process.exe")
export PG_TEST_PROCESS
[ -z "${PG_FULL:-}" ] || export PG_ROUNDS="${PG_ROUNDS:-300}"
failed=0
for version in 22 24; do
	for file in test/windows/*.test.js; do
		echo "Windows: node $version $file"
		# Into a file: what a test leaves behind would hold a pipe open.
		timeout -k 5 900 "$here/wine" "$(windows "$cache/runner.exe")" "$(windows "$cache/node/$version/node.exe")" \
			--test-reporter=spec "$file" </dev/null >"$cache/out" 2>&1 || failed=1
		grep -a -v 'no inode matches' "$cache/out"
	done
done
exit $failed
