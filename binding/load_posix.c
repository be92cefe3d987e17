#include "load.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void pg_mutex_init(pg_mutex *mutex) {
	pthread_mutex_init(mutex, NULL);
}

void pg_mutex_destroy(pg_mutex *mutex) {
	pthread_mutex_destroy(mutex);
}

void pg_mutex_lock(pg_mutex *mutex) {
	pthread_mutex_lock(mutex);
}

void pg_mutex_unlock(pg_mutex *mutex) {
	pthread_mutex_unlock(mutex);
}

void pg_block_signals(pg_mask *old) {
	static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
	sigset_t set;
	sigfillset(&set);
	for (size_t i = 0; i < sizeof synchronous / sizeof *synchronous; i++) {
		sigdelset(&set, synchronous[i]);
	}
	pthread_sigmask(SIG_BLOCK, &set, old);
}

void pg_restore_signals(const pg_mask *old) {
	pthread_sigmask(SIG_SETMASK, old, NULL);
}

/*
 * What every copy of the shim in this process shares. Each copy has one, exports
 * it and joins the global symbol scope; the copy that joined first is the one that
 * dlsym finds, so all of them take the same lock. The layout belongs to the
 * symbol's name: change both or neither.
 */
struct process_state {
	pthread_mutex_t lock;
	const struct pg_api *api;
	bool pinned;
	char path[PATH_MAX];
};

#define STATE_SYMBOL "pg_process_state_1"
__attribute__((visibility("default"))) struct process_state pg_process_state_1 = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
};

static struct process_state *process_state(void) {
	/* The address of a function of this copy: that of the state may already be the
	 * first copy's, since the loader looks in the global scope first. */
	union {
		struct process_state *(*function)(void);
		void *address;
	} here = {.function = process_state};
	Dl_info own;
	if (dladdr(here.address, &own) != 0) {
		/* NODELETE as well: Node closes an addon that only workers loaded, while Go
		 * still returns into it (rc=139 in three runs of three). Linux has it from
		 * -z nodelete, macOS only from here. The handle is kept on purpose. */
		(void)dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL | RTLD_NODELETE);
	}
	struct process_state *shared = dlsym(RTLD_DEFAULT, STATE_SYMBOL);
	return shared != NULL ? shared : &pg_process_state_1;
}

__attribute__((format(printf, 3, 4))) static const struct pg_api *fail(struct pg_failure *failure, const char *code, const char *format, ...) {
	va_list args;
	va_start(args, format);
	failure->code = code;
	(void)vsnprintf(failure->message, sizeof failure->message, format, args);
	va_end(args);
	return NULL;
}

static void ignore_signal(void *handle, int number) {
	(void)handle;
	(void)number;
}

/*
 * libuv installs its SIGCHLD handler at the first spawn of a process, without
 * SA_ONSTACK, removes it when the last child is gone, and installs it again. Go
 * unblocks SIGCHLD on its threads, so such a handler runs on goroutine stacks: a
 * plain host that only spawned died within seconds. A watcher that is never stopped
 * keeps libuv from installing it again, and the flag added once then stays. The
 * watcher lives on a loop that nobody runs: its pipe fills, which libuv tolerates.
 * It costs five descriptors, needs no thread, and dies with no worker.
 */
static void pin_sigchld(void) {
	enum { UV_SIGNAL = 16 };
	int (*loop_init)(void *) = NULL;
	int (*signal_init)(void *, void *) = NULL;
	int (*signal_start)(void *, void (*)(void *, int), int) = NULL;
	size_t (*loop_size)(void) = NULL;
	size_t (*handle_size)(int) = NULL;
	struct {
		const char *name;
		void *slot;
	} wanted[] = {
		{"uv_loop_init", &loop_init},       {"uv_signal_init", &signal_init}, {"uv_signal_start", &signal_start},
		{"uv_loop_size", &loop_size}, {"uv_handle_size", &handle_size},
	};
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		void *symbol = dlsym(RTLD_DEFAULT, wanted[i].name);
		if (symbol == NULL) {
			return; /* not a libuv host, so no such handler */
		}
		memcpy(wanted[i].slot, &symbol, sizeof symbol);
	}
	void *loop = calloc(1, loop_size());
	void *handle = calloc(1, handle_size(UV_SIGNAL));
	if (loop == NULL || handle == NULL || loop_init(loop) != 0) {
		free(loop);
		free(handle);
		return;
	}
	/* From here on libuv knows the memory: it stays for the life of the process. */
	if (signal_init(loop, handle) != 0 || signal_start(handle, ignore_signal, SIGCHLD) != 0) {
		return;
	}
	struct sigaction action;
	if (sigaction(SIGCHLD, NULL, &action) == 0 && (action.sa_flags & SA_ONSTACK) == 0) {
		action.sa_flags |= SA_ONSTACK;
		(void)sigaction(SIGCHLD, &action, NULL);
	}
}

/*
 * Go reserves 1.6 GB of addresses when it starts, and where a limit leaves less it
 * ends the process: "failed to reserve page summary memory", or an abort without a
 * word. Nobody can catch that, so it is foreseen. Megabytes missing; 0 when it fits.
 */
static unsigned long missing_address_space(void) {
	enum { NEEDED_MB = 1750 };
	struct rlimit limit;
	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
		return 0;
	}
	unsigned long pages = 0;
	FILE *statm = fopen("/proc/self/statm", "re");
	if (statm != NULL) {
		if (fscanf(statm, "%lu", &pages) != 1) {
			pages = 0;
		}
		(void)fclose(statm);
	}
	unsigned long used = pages / 256 * (unsigned long)(sysconf(_SC_PAGESIZE) / 4096);
	unsigned long allowed = (unsigned long)(limit.rlim_cur >> 20);
	unsigned long left = allowed > used ? allowed - used : 0;
	return left < NEEDED_MB ? NEEDED_MB - left : 0;
}

static const struct pg_api *table_of(void *library) {
	void *symbol = dlsym(library, PG_API_SYMBOL);
	pg_api_getter getter;
	memcpy(&getter, &symbol, sizeof getter);
	return symbol != NULL ? getter() : NULL;
}

/*
 * By the path: an upgrade in place renames a new file over it, and the process goes
 * on with what it loaded. By the file: a package manager may hard-link one copy to
 * two places, which the loader knows to be one library.
 */
static bool same_library(const struct process_state *state, const char *path) {
	if (strcmp(state->path, path) == 0) {
		return true;
	}
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	bool same = library != NULL && table_of(library) == state->api;
	if (library != NULL) {
		dlclose(library);
	}
	return same;
}

static const struct pg_api *load_locked(struct process_state *state, const char *path, char *settings, size_t settings_len, struct pg_failure *failure) {
	char real[PATH_MAX];
	bool found = realpath(path, real) != NULL;
	int reason = errno;

	if (state->api != NULL) {
		if (same_library(state, found ? real : path)) {
			return state->api;
		}
		return fail(failure, "PG_SECOND_COPY",
			"this process already runs the process guard library %s; the copy %s was not loaded, because one process cannot hold two Go runtimes. "
			"Make every component resolve one installation of the package (npm dedupe, or one hoisted dependency)",
			state->path, found ? real : path);
	}
	if (!found) {
		return fail(failure, "PG_LOAD_FAILED", "%s: %s", path, strerror(reason));
	}

	unsigned long missing = missing_address_space();
	if (missing != 0) {
		return fail(failure, "PG_LIMIT",
			"the limit on this process's address space (ulimit -v, RLIMIT_AS) is %lu MB too low for a Go library, which would end the process instead of failing; raise it, or limit memory by a cgroup",
			missing);
	}
	if (!state->pinned) {
		state->pinned = true;
		pin_sigchld();
	}
	void *library = dlopen(real, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (library == NULL) {
		const char *text = dlerror();
		return fail(failure, "PG_LOAD_FAILED", "%s", text != NULL ? text : real);
	}
	const struct pg_api *api = table_of(library);
	if (api == NULL) {
		return fail(failure, "PG_LOAD_FAILED", "%s has no symbol " PG_API_SYMBOL ": it is not the library of this package", real);
	}
	if (api->abi != PG_ABI) {
		return fail(failure, "PG_LOAD_FAILED", "%s speaks version %u of the interface, guard.node version %u: they are of different builds", real, api->abi, (unsigned)PG_ABI);
	}
	/* The first call waits for Go's start, so it belongs under the mask as well. */
	api->init(settings, settings_len);
	(void)snprintf(state->path, sizeof state->path, "%s", real);
	state->api = api;
	return api;
}

const struct pg_api *pg_load(const char *path, char *settings, size_t settings_len, struct pg_failure *failure) {
	/* Go's threads inherit this thread's mask for their whole life: with everything
	 * blocked here, no handler of the host ever runs on a goroutine stack. */
	pg_mask old;
	pg_block_signals(&old);
	struct process_state *state = process_state();
	pthread_mutex_lock(&state->lock);
	const struct pg_api *api = load_locked(state, path, settings, settings_len, failure);
	pthread_mutex_unlock(&state->lock);
	pg_restore_signals(&old);
	return api;
}
