/*
 * guard.node: all that this package has of Node-API. It hands JSON from a
 * JavaScript thread to libguard and back; it decides nothing. lib/native.js is its
 * only caller and keeps the promises, since an unresolved napi_deferred of a killed
 * worker would leak.
 *
 * Exports: open(path, settings, deliver), sync(fn, args), call(id, fn, args),
 * send(id, msg), drop(id), stats().
 */
#define NAPI_VERSION 8
#include <limits.h>
#include <node_api.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

/*
 * One JavaScript thread that opened the library. Three hold it: the thread until
 * its cleanup hook, Go until pg_env_close returned, the thread-safe function until
 * it is finalised. `closed` is why Go may call at any moment: Node 22 aborts the
 * whole process when the function of a dying worker is called.
 */
struct guard_env {
	const struct pg_api *api;
	uint64_t token;
	atomic_uint refs;
	pg_mutex mutex;
	bool closed; /* under mutex */
	napi_threadsafe_function deliver;
	uint32_t pending; /* calls not yet answered; JavaScript thread only */
};

/* What one load of the addon has: a thread may never open the library. */
struct addon {
	struct guard_env *open;
};

/* What travels through the thread-safe function. */
struct parcel {
	struct guard_env *ge;
	int kind;
	uint64_t id;
	char *payload;
	size_t len;
};

/* Lives that a test counts: every worker that ended must have given its own back. */
static atomic_uint live_envs;
static atomic_uint live_parcels;

static void release(struct guard_env *ge) {
	if (atomic_fetch_sub(&ge->refs, 1) == 1) {
		pg_mutex_destroy(&ge->mutex);
		free(ge);
		atomic_fetch_sub(&live_envs, 1);
	}
}

static void free_parcel(struct parcel *parcel) {
	parcel->ge->api->free(parcel->payload);
	release(parcel->ge);
	free(parcel);
	atomic_fetch_sub(&live_parcels, 1);
}

/* Called by Go, on any thread. */
static void on_out(void *ctx, int kind, uint64_t id, char *payload, size_t len) {
	struct guard_env *ge = ctx;
	struct parcel *parcel = malloc(sizeof *parcel);
	if (parcel == NULL) {
		ge->api->free(payload);
		return;
	}
	*parcel = (struct parcel){ge, kind, id, payload, len};
	atomic_fetch_add(&ge->refs, 1);
	atomic_fetch_add(&live_parcels, 1);
	pg_mutex_lock(&ge->mutex);
	bool sent = !ge->closed && napi_call_threadsafe_function(ge->deliver, parcel, napi_tsfn_nonblocking) == napi_ok;
	pg_mutex_unlock(&ge->mutex);
	if (!sent) {
		free_parcel(parcel);
	}
}

/* Called on the JavaScript thread with a parcel; env is NULL when it is dying. */
static void on_deliver(napi_env env, napi_value callback, void *context, void *data) {
	(void)context;
	struct parcel *parcel = data;
	struct guard_env *ge = parcel->ge;
	napi_value argv[3];
	napi_value undefined;
	if (env == NULL) {
		free_parcel(parcel);
		return;
	}
	/* A call holds the event loop until its answer; a session does not after it. */
	if (parcel->kind == PG_ANSWER && --ge->pending == 0) {
		napi_unref_threadsafe_function(env, ge->deliver);
	}
	bool ready = napi_create_int32(env, parcel->kind, &argv[0]) == napi_ok &&
		napi_create_int64(env, (int64_t)parcel->id, &argv[1]) == napi_ok &&
		napi_create_string_utf8(env, parcel->payload != NULL ? parcel->payload : "", parcel->len, &argv[2]) == napi_ok &&
		napi_get_undefined(env, &undefined) == napi_ok;
	free_parcel(parcel);
	if (!ready) {
		return;
	}
	if (napi_call_function(env, undefined, callback, 3, argv, NULL) == napi_pending_exception) {
		/* Whatever a listener throws is the host's uncaught exception, as from any
		 * event handler. Left pending, Node would only print a deprecation warning. */
		napi_value thrown;
		if (napi_get_and_clear_last_exception(env, &thrown) == napi_ok) {
			napi_fatal_exception(env, thrown);
		}
	}
}

static void on_deliver_gone(napi_env env, void *data, void *hint) {
	(void)env;
	(void)hint;
	release(data);
}

/*
 * The thread ends. The hook was added after the thread-safe function was made, so
 * it runs before Node takes that function away.
 */
static void on_thread_end(void *data) {
	struct guard_env *ge = data;
	pg_mutex_lock(&ge->mutex);
	ge->closed = true;
	napi_release_threadsafe_function(ge->deliver, napi_tsfn_abort);
	pg_mutex_unlock(&ge->mutex);

	pg_mask old;
	pg_block_signals(&old);
	ge->api->env_close(ge->token);
	pg_restore_signals(&old);
	release(ge); /* Go's */
	release(ge); /* the thread's */
}

/* A string argument; most fit in the stack buffer. */
struct text {
	char *data;
	size_t len;
	char buffer[1024];
};

static bool take_text(napi_env env, napi_value value, struct text *text) {
	text->data = text->buffer;
	if (napi_get_value_string_utf8(env, value, text->buffer, sizeof text->buffer, &text->len) != napi_ok) {
		napi_throw_type_error(env, "ERR_INVALID_ARG_TYPE", "guard.node: expected a string");
		return false;
	}
	/* Shorter than the buffer by a whole character: nothing was cut off. */
	if (text->len < sizeof text->buffer - 4) {
		return true;
	}
	size_t len;
	if (napi_get_value_string_utf8(env, value, NULL, 0, &len) != napi_ok || (text->data = malloc(len + 1)) == NULL) {
		text->data = text->buffer;
		napi_throw_error(env, "PG_NO_MEMORY", "guard.node: out of memory for a string");
		return false;
	}
	napi_get_value_string_utf8(env, value, text->data, len + 1, &text->len);
	return true;
}

static void drop_text(struct text *text) {
	if (text->data != text->buffer) {
		free(text->data);
	}
}

static bool take_id(napi_env env, napi_value value, uint64_t *id) {
	int64_t number;
	if (napi_get_value_int64(env, value, &number) != napi_ok) {
		napi_throw_type_error(env, "ERR_INVALID_ARG_TYPE", "guard.node: expected a number");
		return false;
	}
	*id = (uint64_t)number;
	return true;
}

/* The arguments of an exported function, missing ones undefined. */
static struct addon *arguments(napi_env env, napi_callback_info info, size_t count, napi_value *argv) {
	void *data = NULL;
	napi_get_cb_info(env, info, &count, argv, NULL, &data);
	return data;
}

static struct guard_env *opened(napi_env env, const struct addon *addon) {
	if (addon->open == NULL) {
		napi_throw_error(env, "PG_NOT_OPEN", "guard.node: open() has not been called on this thread");
	}
	return addon->open;
}

static bool attach(napi_env env, napi_value callback, struct guard_env *ge) {
	napi_value name;
	if (napi_create_string_utf8(env, "process-guard", NAPI_AUTO_LENGTH, &name) != napi_ok) {
		return false;
	}
	/* The queue has no limit: a full one would make Go wait for JavaScript. */
	atomic_store(&ge->refs, 1);
	if (napi_create_threadsafe_function(env, callback, NULL, name, 0, 1, ge, on_deliver_gone, ge, on_deliver, &ge->deliver) != napi_ok) {
		return false;
	}
	napi_unref_threadsafe_function(env, ge->deliver);
	atomic_fetch_add(&ge->refs, 2);

	pg_mask old;
	pg_block_signals(&old);
	ge->token = ge->api->env_open(on_out, ge);
	pg_restore_signals(&old);
	return ge->token != 0 && napi_add_env_cleanup_hook(env, on_thread_end, ge) == napi_ok;
}

/* open(path, settings, deliver): loads the library; once per thread. */
static napi_value addon_open(napi_env env, napi_callback_info info) {
	napi_value argv[3];
	struct addon *addon = arguments(env, info, 3, argv);
	struct text path;
	struct text settings;
	if (addon->open != NULL || !take_text(env, argv[0], &path)) {
		return NULL;
	}
	if (!take_text(env, argv[1], &settings)) {
		drop_text(&path);
		return NULL;
	}
	struct pg_failure failure = {NULL, ""};
	const struct pg_api *api = pg_load(path.data, settings.data, settings.len, &failure);
	drop_text(&path);
	drop_text(&settings);
	if (api == NULL) {
		napi_throw_error(env, failure.code, failure.message);
		return NULL;
	}
	struct guard_env *ge = calloc(1, sizeof *ge);
	if (ge == NULL) {
		napi_throw_error(env, "PG_NO_MEMORY", "guard.node: out of memory");
		return NULL;
	}
	atomic_fetch_add(&live_envs, 1);
	ge->api = api;
	pg_mutex_init(&ge->mutex);
	if (attach(env, argv[2], ge)) {
		addon->open = ge;
		return NULL;
	}
	if (ge->deliver != NULL) {
		on_thread_end(ge);
	} else {
		release(ge);
	}
	napi_throw_error(env, "PG_LOAD_FAILED", "guard.node: Node refused the callback of this thread, which is probably ending");
	return NULL;
}

/* sync(fn, args): the answer as text. */
static napi_value addon_sync(napi_env env, napi_callback_info info) {
	napi_value argv[2];
	napi_value result = NULL;
	struct guard_env *ge = opened(env, arguments(env, info, 2, argv));
	struct text fn;
	struct text args;
	if (ge == NULL || !take_text(env, argv[0], &fn)) {
		return NULL;
	}
	if (take_text(env, argv[1], &args)) {
		size_t len = 0;
		pg_mask old;
		pg_block_signals(&old);
		char *answer = ge->api->sync(ge->token, fn.data, fn.len, args.data, args.len, &len);
		pg_restore_signals(&old);
		if (answer == NULL) {
			napi_throw_error(env, "PG_CLOSED", "guard.node: this thread's library session is closed");
		} else {
			napi_create_string_utf8(env, answer, len, &result);
			ge->api->free(answer);
		}
		drop_text(&args);
	}
	drop_text(&fn);
	return result;
}

/* call(id, fn, args): answered through deliver. */
static napi_value addon_call(napi_env env, napi_callback_info info) {
	napi_value argv[3];
	struct guard_env *ge = opened(env, arguments(env, info, 3, argv));
	uint64_t id;
	struct text fn;
	struct text args;
	if (ge == NULL || !take_id(env, argv[0], &id) || !take_text(env, argv[1], &fn)) {
		return NULL;
	}
	if (take_text(env, argv[2], &args)) {
		if (ge->pending++ == 0) {
			napi_ref_threadsafe_function(env, ge->deliver);
		}
		pg_mask old;
		pg_block_signals(&old);
		ge->api->call(ge->token, id, fn.data, fn.len, args.data, args.len);
		pg_restore_signals(&old);
		drop_text(&args);
	}
	drop_text(&fn);
	return NULL;
}

/* send(id, msg) */
static napi_value addon_send(napi_env env, napi_callback_info info) {
	napi_value argv[2];
	struct guard_env *ge = opened(env, arguments(env, info, 2, argv));
	uint64_t id;
	struct text msg;
	if (ge != NULL && take_id(env, argv[0], &id) && take_text(env, argv[1], &msg)) {
		pg_mask old;
		pg_block_signals(&old);
		ge->api->send(ge->token, id, msg.data, msg.len);
		pg_restore_signals(&old);
		drop_text(&msg);
	}
	return NULL;
}

/* drop(id) */
static napi_value addon_drop(napi_env env, napi_callback_info info) {
	napi_value argv[1];
	struct guard_env *ge = opened(env, arguments(env, info, 1, argv));
	uint64_t id;
	if (ge != NULL && take_id(env, argv[0], &id)) {
		pg_mask old;
		pg_block_signals(&old);
		ge->api->drop(ge->token, id);
		pg_restore_signals(&old);
	}
	return NULL;
}

/* stats(): what is alive in this process, for tests: [threads, parcels]. */
static napi_value addon_stats(napi_env env, napi_callback_info info) {
	(void)info;
	napi_value list;
	napi_value item;
	napi_create_array_with_length(env, 2, &list);
	napi_create_uint32(env, atomic_load(&live_envs), &item);
	napi_set_element(env, list, 0, item);
	napi_create_uint32(env, atomic_load(&live_parcels), &item);
	napi_set_element(env, list, 1, item);
	return list;
}

#ifdef PG_SANITIZE
/* plant(kind): does what the sanitizers must find, so that a test sees them look. */
static napi_value addon_plant(napi_env env, napi_callback_info info) {
	napi_value argv[1];
	struct text kind;
	(void)arguments(env, info, 1, argv);
	if (!take_text(env, argv[0], &kind)) {
		return NULL;
	}
	char *volatile block = malloc(16);
	volatile int large = INT_MAX;
	if (strcmp(kind.data, "overflow") == 0) {
		block[16] = 1;
	} else if (strcmp(kind.data, "use after free") == 0) {
		free(block);
		block[0] = 1;
	} else if (strcmp(kind.data, "undefined") == 0) {
		large = large + 1;
	} else if (strcmp(kind.data, "leak") == 0) {
		block = NULL;
	}
	free(block);
	return NULL;
}
#endif

static void free_addon(napi_env env, void *data, void *hint) {
	(void)env;
	(void)hint;
	free(data);
}

NAPI_MODULE_INIT() {
	static const struct {
		const char *name;
		napi_callback function;
	} functions[] = {
		{"open", addon_open}, {"sync", addon_sync}, {"call", addon_call},
		{"send", addon_send}, {"drop", addon_drop}, {"stats", addon_stats},
#ifdef PG_SANITIZE
		{"plant", addon_plant},
#endif
	};
	/* Two initialisations in one thread happen (a cleared require cache). Node gives
	 * each a napi_env of its own, so each has an addon and opens for itself: nothing of
	 * the first is overwritten. */
	struct addon *addon = calloc(1, sizeof *addon);
	if (addon == NULL || napi_set_instance_data(env, addon, free_addon, NULL) != napi_ok) {
		free(addon);
		napi_throw_error(env, "PG_NO_MEMORY", "guard.node: out of memory");
		return NULL;
	}
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		napi_value function;
		if (napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].function, addon, &function) != napi_ok ||
			napi_set_named_property(env, exports, functions[i].name, function) != napi_ok) {
			return NULL; /* an exception is pending, or the thread is ending */
		}
	}
	return exports;
}
