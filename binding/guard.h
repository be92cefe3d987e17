/*
 * The C ABI of libguard, between the Node-API shim (addon.c, load_*.c) and the Go
 * library (go/capi). The shim finds one symbol, pg_api_get, and takes the rest
 * from the table it returns.
 *
 * Strings are UTF-8, not NUL-terminated, with their length beside them; calls and
 * answers are JSON. What libguard hands out is freed with pg_free. An env is an
 * opaque token, never a pointer: a stale one is refused instead of followed.
 *
 * Every function but pg_free enters the Go runtime. On a JavaScript thread it must
 * be called with the asynchronous signals blocked (pg_block_signals): a handler
 * without SA_ONSTACK, which is how libuv installs them, would push its frame of
 * 3.4 KB on a goroutine stack of 2 KB.
 */
#ifndef PG_GUARD_H
#define PG_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* Raised with every incompatible change of this file. */
#define PG_ABI 1

/* What pg_out is given; internal/guard says the same in Go. */
enum {
	PG_ANSWER = 0,  /* settles call id */
	PG_MESSAGE = 1, /* a message of session id */
	PG_END = 2      /* session id, settled before, is over */
};

/*
 * Called by Go from any thread, never after pg_env_close returned. Takes ownership
 * of payload, which may be NULL when len is 0. Must not wait.
 */
typedef void (*pg_out)(void *ctx, int kind, uint64_t id, char *payload, size_t len);

struct pg_api {
	uint32_t abi;
	/* Once per process; the first settings count. */
	void (*init)(char *settings, size_t len);
	/* One per JavaScript thread. 0 is never an env. */
	uint64_t (*env_open)(pg_out out, void *ctx);
	void (*env_close)(uint64_t env);
	/* Short, never waits. Returns the answer, or NULL when memory is out. */
	char *(*sync)(uint64_t env, char *fn, size_t fn_len, char *args, size_t args_len, size_t *len);
	/* Answered through pg_out with PG_ANSWER. */
	void (*call)(uint64_t env, uint64_t id, char *fn, size_t fn_len, char *args, size_t args_len);
	void (*send)(uint64_t env, uint64_t id, char *msg, size_t len);
	void (*drop)(uint64_t env, uint64_t id);
	/* Plain free of the library's own C runtime; does not enter Go. */
	void (*free)(void *p);
};

/* The exported symbol. */
#define PG_API_SYMBOL "pg_api_get"
typedef const struct pg_api *(*pg_api_getter)(void);

#endif
