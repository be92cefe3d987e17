package keep

import (
	"slices"
	"strings"
	"testing"
)

func TestOnlyPagesThatCanBeReadAgainAreDropped(t *testing.T) {
	const smaps = `00400000-0051f000 r-xp 00000000 fe:00 393 /opt/keeper
Size:               1148 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
0051f000-00600000 r--p 00120000 fe:00 393 /opt/a keeper (deleted)
Anonymous:             0 kB
00600000-00610000 r--p 00210000 fe:00 393 /lib/relocated.so
Anonymous:             8 kB
00610000-00620000 rw-p 00210000 fe:00 393 /opt/keeper
Anonymous:             0 kB
00620000-00680000 r--p 00000000 00:00 0
Anonymous:             0 kB
7fff0000-7fff2000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x51f000}, {0x51f000, 0x600000}}
	if got := cleanMappings(strings.NewReader(smaps)); !slices.Equal(got, want) {
		t.Errorf("%x, not %x", got, want)
	}
}
