/*
 * The table that the shim asks for. Filling it here makes the compiler compare the
 * Go exports with guard.h; a difference is a build error, not a crash in a host.
 */
#include "guard.h"

#include <stdlib.h>

#include "_cgo_export.h"

#ifdef _WIN32
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

EXPORTED void pg_free(void *p) {
	free(p);
}

static const struct pg_api api = {
	.abi = PG_ABI,
	.init = pg_init,
	.env_open = pg_env_open,
	.env_close = pg_env_close,
	.sync = pg_sync,
	.call = pg_call,
	.send = pg_send,
	.drop = pg_drop,
	.free = pg_free,
};

EXPORTED const struct pg_api *pg_api_get(void) {
	return &api;
}
