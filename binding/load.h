/*
 * How the shim reaches libguard, and what it needs of the operating system.
 * load_posix.c and load_windows.c are the two answers.
 */
#ifndef PG_LOAD_H
#define PG_LOAD_H

#include <stddef.h>

#include "guard.h"

#ifdef _WIN32
#include <windows.h>
typedef SRWLOCK pg_mutex;
typedef int pg_mask;
#else
#include <pthread.h>
#include <signal.h>
typedef pthread_mutex_t pg_mutex;
typedef sigset_t pg_mask;
#endif

void pg_mutex_init(pg_mutex *mutex);
void pg_mutex_destroy(pg_mutex *mutex);
void pg_mutex_lock(pg_mutex *mutex);
void pg_mutex_unlock(pg_mutex *mutex);

/*
 * Between these two a call into Go is safe on a JavaScript thread. The signals a
 * fault raises stay deliverable: a blocked SIGSEGV is fatal (rc=139 for a nil
 * dereference, measured), while Go turns a delivered one into a panic.
 */
void pg_block_signals(pg_mask *old);
void pg_restore_signals(const pg_mask *old);

/* What went wrong: a stable code for JavaScript, and a sentence. */
struct pg_failure {
	const char *code;
	char message[4096];
};

/*
 * Loads the library at this absolute path once per process, initialises it with
 * the settings, and returns its table; NULL with failure filled otherwise. Safe
 * from every thread. One Go runtime fits in a process: a path other than the
 * first one's is refused, even when another copy of the shim asks.
 */
const struct pg_api *pg_load(const char *path, char *settings, size_t settings_len, struct pg_failure *failure);

#endif
