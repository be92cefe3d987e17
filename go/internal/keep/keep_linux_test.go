package keep

import (
	"testing"

	"golang.org/x/sys/unix"

	"processguard/go/internal/record"
)

func TestStartThenStop(t *testing.T) {
	c := sh(t, "exec sleep 300")
	r := c.start()
	if r.Keeper <= 0 || r.Started == "" || r.Launcher != 0 || len(r.KeeperArgv) != 6 {
		t.Fatalf("record %+v", r)
	}
	signalPID(t, r.Keeper, unix.SIGTERM)
	x := c.ended(r.Keeper)
	if x.Outcome != record.Released || x.Signal == nil || *x.Signal != "SIGTERM" || x.PID != r.PID || !x.Released {
		t.Fatalf("exit %s", asJSON(x))
	}
}
