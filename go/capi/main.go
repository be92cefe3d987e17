// Command capi is libguard: the exported C functions of binding/guard.h, the
// table of envs behind them, and nothing else. What the functions do is in
// internal/guard.
//
// It runs inside somebody else's process, under rules whose breach ends that
// process: no os/signal beyond ignoring SIGPIPE, nothing written to the standard
// streams, recover on top of every export, no loop without a call in it (the
// library is built with asyncpreemptoff=1, so such a loop would hold up a
// collection).
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../binding -std=c11 -Wall -Wextra -Wno-unused-parameter -Werror=incompatible-pointer-types
#include <stdlib.h>
#include "guard.h"

static inline void emit(pg_out out, void *ctx, int kind, uint64_t id, char *payload, size_t len) {
	out(ctx, kind, id, payload, len);
}
*/
import "C"

import (
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"unsafe"

	"processguard/go/internal/guard"
)

func init() {
	// Go replaces the SIG_IGN that Node has for SIGPIPE. A write of ours to a
	// closed descriptor 1 or 2 then kills the host (rc=141, measured).
	signal.Ignore(syscall.SIGPIPE)
	// The host's memory is not ours: half the default garbage, two threads at once.
	debug.SetGCPercent(50)
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
}

func main() {}

// envs maps tokens to envs. A token is never used twice, so a late call of a
// thread that has ended finds nothing.
var envs = struct {
	sync.Mutex
	last uint64
	open map[uint64]*guard.Env
}{open: map[uint64]*guard.Env{}}

func env(token C.uint64_t) *guard.Env {
	envs.Lock()
	defer envs.Unlock()
	return envs.open[uint64(token)]
}

func bytes(p *C.char, n C.size_t) []byte {
	if p == nil || n == 0 {
		return nil
	}
	return C.GoBytes(unsafe.Pointer(p), C.int(n))
}

// contain is deferred by every export: a panic that crosses into C is the end of
// the host. What internal/guard does is caught there and answered; what reaches
// this place has nobody left to answer to.
func contain() { _ = recover() }

//export pg_init
func pg_init(settings *C.char, n C.size_t) {
	defer contain()
	guard.Init(bytes(settings, n))
}

//export pg_env_open
func pg_env_open(out C.pg_out, ctx unsafe.Pointer) C.uint64_t {
	defer contain()
	e := guard.NewEnv(func(kind int, id uint64, payload []byte) {
		var copied unsafe.Pointer
		if len(payload) > 0 {
			copied = C.CBytes(payload)
		}
		C.emit(out, ctx, C.int(kind), C.uint64_t(id), (*C.char)(copied), C.size_t(len(payload)))
	})
	envs.Lock()
	defer envs.Unlock()
	envs.last++
	envs.open[envs.last] = e
	return C.uint64_t(envs.last)
}

//export pg_env_close
func pg_env_close(token C.uint64_t) {
	defer contain()
	envs.Lock()
	e := envs.open[uint64(token)]
	delete(envs.open, uint64(token))
	envs.Unlock()
	if e != nil {
		e.Close()
	}
}

//export pg_sync
func pg_sync(token C.uint64_t, fn *C.char, fnLen C.size_t, args *C.char, argsLen C.size_t, n *C.size_t) *C.char {
	defer contain()
	*n = 0
	e := env(token)
	if e == nil {
		return nil
	}
	answer := e.Sync(string(bytes(fn, fnLen)), bytes(args, argsLen))
	*n = C.size_t(len(answer))
	return (*C.char)(C.CBytes(answer))
}

//export pg_call
func pg_call(token, id C.uint64_t, fn *C.char, fnLen C.size_t, args *C.char, argsLen C.size_t) {
	defer contain()
	if e := env(token); e != nil {
		e.Call(uint64(id), string(bytes(fn, fnLen)), bytes(args, argsLen))
	}
}

//export pg_send
func pg_send(token, id C.uint64_t, msg *C.char, n C.size_t) {
	defer contain()
	if e := env(token); e != nil {
		e.Send(uint64(id), bytes(msg, n))
	}
}

//export pg_drop
func pg_drop(token, id C.uint64_t) {
	defer contain()
	if e := env(token); e != nil {
		e.Drop(uint64(id))
	}
}
