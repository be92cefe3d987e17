/*
 * The Windows counterpart of load_posix.c. There are no signals to keep off Go's
 * stacks and no SIGCHLD; what remains is one runtime per process, both modules
 * pinned, and Node's functions found in whatever the executable is called.
 */
#include "load.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * A module that imports napi_* from node.exe does not load into a renamed one
 * ("Module not found", tested with node.exe copied to another name). node_api.h
 * declares the functions dllimport, so the compiler calls through these variables;
 * they are filled before anything runs.
 */
#define NAPI_FUNCTIONS(X) \
	X(napi_add_env_cleanup_hook) \
	X(napi_call_function) \
	X(napi_call_threadsafe_function) \
	X(napi_create_array_with_length) \
	X(napi_create_function) \
	X(napi_create_int32) \
	X(napi_create_int64) \
	X(napi_create_string_utf8) \
	X(napi_create_threadsafe_function) \
	X(napi_create_uint32) \
	X(napi_fatal_exception) \
	X(napi_get_and_clear_last_exception) \
	X(napi_get_cb_info) \
	X(napi_get_undefined) \
	X(napi_get_value_int64) \
	X(napi_get_value_string_utf8) \
	X(napi_ref_threadsafe_function) \
	X(napi_release_threadsafe_function) \
	X(napi_set_element) \
	X(napi_set_instance_data) \
	X(napi_set_named_property) \
	X(napi_throw_error) \
	X(napi_throw_type_error) \
	X(napi_unref_threadsafe_function)

#define SLOT(name) FARPROC __imp_##name;
NAPI_FUNCTIONS(SLOT)

BOOL WINAPI DllMain(HINSTANCE module, DWORD reason, LPVOID reserved) {
	(void)reserved;
	if (reason != DLL_PROCESS_ATTACH) {
		return TRUE;
	}
	HMODULE host = GetModuleHandleW(NULL);
#define FILL(name) \
	if ((__imp_##name = GetProcAddress(host, #name)) == NULL) { \
		return FALSE; \
	}
	NAPI_FUNCTIONS(FILL)
	/* Node frees an addon that only workers loaded, while Go still returns into it. */
	HMODULE self;
	return GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, (LPCWSTR)module, &self);
}

void pg_mutex_init(pg_mutex *mutex) {
	InitializeSRWLock(mutex);
}

void pg_mutex_destroy(pg_mutex *mutex) {
	(void)mutex;
}

void pg_mutex_lock(pg_mutex *mutex) {
	AcquireSRWLockExclusive(mutex);
}

void pg_mutex_unlock(pg_mutex *mutex) {
	ReleaseSRWLockExclusive(mutex);
}

void pg_block_signals(pg_mask *old) {
	*old = 0;
}

void pg_restore_signals(const pg_mask *old) {
	(void)old;
}

__attribute__((format(printf, 3, 4))) static const struct pg_api *fail(struct pg_failure *failure, const char *code, const char *format, ...) {
	va_list args;
	va_start(args, format);
	failure->code = code;
	(void)vsnprintf(failure->message, sizeof failure->message, format, args);
	va_end(args);
	return NULL;
}

static const struct pg_api *fail_with_error(struct pg_failure *failure, const char *path, DWORD error) {
	char text[512] = "";
	FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, error, 0, text, sizeof text, NULL);
	return fail(failure, "PG_LOAD_FAILED", "%s: %s(error %lu)", path, text, error);
}

static const struct pg_api *table_of(HMODULE library) {
	FARPROC symbol = GetProcAddress(library, PG_API_SYMBOL);
	pg_api_getter getter;
	memcpy(&getter, &symbol, sizeof getter);
	return symbol != NULL ? getter() : NULL;
}

/* Where a loaded module came from, in UTF-8. */
static void name_of(HMODULE module, char *name, size_t size) {
	WCHAR wide[MAX_PATH * 4];
	name[0] = '\0';
	if (GetModuleFileNameW(module, wide, MAX_PATH * 4) != 0) {
		WideCharToMultiByte(CP_UTF8, 0, wide, -1, name, (int)size, NULL, NULL);
	}
}

static const struct pg_api *load_locked(const char *path, char *settings, size_t settings_len, struct pg_failure *failure) {
	WCHAR wide[MAX_PATH * 4];
	if (MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, MAX_PATH * 4) == 0) {
		return fail_with_error(failure, path, GetLastError());
	}
	/* The loader finds a module by its base name, whichever copy of the shim asks. */
	HMODULE running = GetModuleHandleW(L"libguard.dll");
	HMODULE library = LoadLibraryExW(wide, NULL, LOAD_WITH_ALTERED_SEARCH_PATH | (running != NULL ? DONT_RESOLVE_DLL_REFERENCES : 0));
	if (library == NULL) {
		return fail_with_error(failure, path, GetLastError());
	}
	if (running != NULL && running != library) {
		char name[MAX_PATH * 4];
		name_of(running, name, sizeof name);
		FreeLibrary(library);
		return fail(failure, "PG_SECOND_COPY",
			"this process already runs the process guard library %s; the copy %s was not loaded, because one process cannot hold two Go runtimes. "
			"Make every component resolve one installation of the package (npm dedupe, or one hoisted dependency)",
			name, path);
	}
	HMODULE pinned;
	(void)GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN, wide, &pinned);
	const struct pg_api *api = table_of(library);
	if (api == NULL) {
		return fail(failure, "PG_LOAD_FAILED", "%s has no symbol " PG_API_SYMBOL ": it is not the library of this package", path);
	}
	if (api->abi != PG_ABI) {
		return fail(failure, "PG_LOAD_FAILED", "%s speaks version %u of the interface, guard.node version %u: they are of different builds", path, api->abi, (unsigned)PG_ABI);
	}
	api->init(settings, settings_len);
	return api;
}

const struct pg_api *pg_load(const char *path, char *settings, size_t settings_len, struct pg_failure *failure) {
	/* A named mutex is shared by every copy of the shim in this process. */
	char name[64];
	(void)snprintf(name, sizeof name, "Local\\process-guard-load-%lu", GetCurrentProcessId());
	HANDLE lock = CreateMutexA(NULL, FALSE, name);
	if (lock == NULL) {
		return fail_with_error(failure, name, GetLastError());
	}
	(void)WaitForSingleObject(lock, INFINITE);
	const struct pg_api *api = load_locked(path, settings, settings_len, failure);
	ReleaseMutex(lock);
	CloseHandle(lock);
	return api;
}
