/*
 * Included before everything else, in the shim and in every cgo file: keeps the
 * binaries loadable on glibc 2.28, the floor of Node itself. Built on a newer
 * system, these names would be bound to the versions that glibc 2.32 and 2.34 gave
 * them when libpthread and libdl moved into libc. The old versions are the same
 * functions; an old glibc has them in the libraries that every Node links.
 */
#if defined(__linux__) && !defined(__ASSEMBLER__)
/* Not <features.h>: it would fix the feature macros before a file could ask for its own. */
#if __has_include(<gnu/libc-version.h>)
#if defined(__x86_64__)
#define PG_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define PG_GLIBC "GLIBC_2.17"
#endif
#ifdef PG_GLIBC
#define PG_BIND(name, version) __asm__(".symver " #name "," #name "@" version)
PG_BIND(pthread_create, PG_GLIBC);
PG_BIND(pthread_detach, PG_GLIBC);
PG_BIND(pthread_join, PG_GLIBC);
PG_BIND(pthread_key_create, PG_GLIBC);
PG_BIND(pthread_setspecific, PG_GLIBC);
PG_BIND(pthread_getspecific, PG_GLIBC);
PG_BIND(pthread_sigmask, PG_GLIBC);
PG_BIND(pthread_attr_getstack, PG_GLIBC);
PG_BIND(pthread_attr_getstacksize, PG_GLIBC);
PG_BIND(pthread_getattr_np, PG_GLIBC);
PG_BIND(dlopen, PG_GLIBC);
PG_BIND(dlclose, PG_GLIBC);
PG_BIND(dlsym, PG_GLIBC);
PG_BIND(dlerror, PG_GLIBC);
PG_BIND(dladdr, PG_GLIBC);
#endif
#endif
#endif
