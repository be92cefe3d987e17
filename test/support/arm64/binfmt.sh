#!/bin/sh
# Makes the kernel start arm64 executables with qemu: a keeper starts its process by execve, and a spawn of
# process.execPath would otherwise run the ELF file as a shell script.
# O: qemu gets the opened file, so that it may lie where the process sees another root; C: its owner and mode count;
# P: argv[0] stays as the caller wrote it.
set -eu
binfmt=/proc/sys/fs/binfmt_misc
[ -e $binfmt/register ] || mount -t binfmt_misc none $binfmt
[ ! -e $binfmt/pg-aarch64 ] || exit 0
for entry in "$binfmt"/*; do
	# Debian's qemu-user-binfmt and container hosts register one of their own.
	if grep -qs '^interpreter.*aarch64' "$entry" && grep -qs '^enabled' "$entry"; then exit 0; fi
done
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":pg-aarch64:M::$magic:$mask:$(command -v qemu-aarch64):OCP" > $binfmt/register
