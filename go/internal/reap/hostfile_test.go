package reap

import (
	"testing"
	"time"

	"processguard/go/internal/proc"
)

func TestWrittenAfterTheProcessStarted(t *testing.T) {
	const start = 100 * time.Second // since boot
	at := func(ahead, afterStart time.Duration) time.Time { return time.Unix(0, int64(start+ahead+afterStart)) }
	const ahead, set = 1000 * time.Hour, time.Hour
	for _, c := range []struct {
		name     string
		clock    []time.Duration
		modified time.Time
		want     proc.Answer
	}{
		{"a boot later", []time.Duration{ahead}, at(ahead, 400*time.Millisecond), proc.Yes},
		{"in the tick of the start", []time.Duration{ahead}, at(ahead, -9*time.Millisecond), proc.Yes},
		{"before the start", []time.Duration{ahead}, at(ahead, -21*time.Millisecond), proc.No},
		{"last week's", []time.Duration{ahead}, at(ahead, -7*24*time.Hour), proc.No},
		{"clock put forward since it was written", []time.Duration{ahead, ahead + set}, at(ahead, 400*time.Millisecond), proc.Yes},
		{"clock put back since it was written", []time.Duration{ahead, ahead - set}, at(ahead, 400*time.Millisecond), proc.Yes},
		{"clock put forward, and written then", []time.Duration{ahead, ahead + set}, at(ahead+set, 400*time.Millisecond), proc.Yes},
		{"clock put forward, last week's", []time.Duration{ahead, ahead + set}, at(ahead, -7*24*time.Hour), proc.No},
		{"no clock", nil, at(ahead, 400*time.Millisecond), proc.Unknown},
	} {
		var k clock
		for _, a := range c.clock {
			k.add(a)
		}
		if got := k.writtenAfter(c.modified, start); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

func TestClockKeepsOneDifferenceForEachSetting(t *testing.T) {
	var k clock
	for range 1000 {
		k.look()
	}
	if len(k.ahead) != 1 {
		t.Errorf("%v", k.ahead)
	}
}
