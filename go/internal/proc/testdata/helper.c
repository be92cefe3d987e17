/* Processes that Go cannot be: with a leader that ended before its threads,
 * with an exec by another thread, with a rewritten title, behind a filter.
 * One mode per argument; each says a line when it is in place and does the
 * rest once it reads a line, or the end, from its standard input: a test that
 * dies leaves none of them behind. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(99); }

static void say(const char *word, long n) { printf("%s %ld\n", word, n); fflush(stdout); }

static void wait_line(int fd)
{
	char c;
	ssize_t n;
	do n = read(fd, &c, 1); while ((n == 1 && c != '\n') || (n < 0 && errno == EINTR));
}

/* "exit:3", "kill:11" */
static void end(const char *how)
{
	int n = atoi(how + 5);
	if (how[0] == 'e') _exit(n);
	signal(n, SIG_DFL);
	raise(n);
	_exit(98);
}

static const char *how;
static char **after;

static void *rest(void *unused)
{
	(void)unused;
	say("tid", (long)syscall(SYS_gettid));
	wait_line(0);
	if (after) { execv(after[0], after); fail("execv"); }
	if (!strcmp(how, "return")) pthread_exit(NULL);
	end(how);
	return NULL;
}

static void thread(void)
{
	pthread_t t;
	if (pthread_create(&t, NULL, rest, NULL)) fail("pthread_create");
}

/* A child whose end and whose reaping are told apart: the parent lets it end
 * on the first line and reaps it on the second. */
static int family(void)
{
	int go[2], status;
	pid_t pid;
	if (pipe(go)) fail("pipe");
	if ((pid = fork()) < 0) fail("fork");
	if (pid == 0) {
		close(go[1]);
		wait_line(go[0]);
		end(how);
	}
	close(go[0]);
	say("child", pid);
	wait_line(0);
	close(go[1]);
	wait_line(0);
	if (waitpid(pid, &status, 0) != pid) fail("waitpid");
	say("reaped", status);
	wait_line(0);
	return 0;
}

/* A child of nobody: its parent is gone before it speaks. */
static int orphan(void)
{
	pid_t parent = getpid();
	if (fork() != 0) _exit(0);
	while (getppid() == parent) usleep(1000);
	say("orphan", getpid());
	wait_line(0);
	end(how);
	return 0;
}

static int title(char **argv)
{
	char *from = argv[0], *to = argv[2] + strlen(argv[2]);
	memset(from, 0, (size_t)(to - from));
	strncpy(from, "worker: idle", (size_t)(to - from));
	say("title", getpid());
	wait_line(0);
	return 0;
}

/* Every pidfd_open of the command fails with this errno. */
static int filtered(int number, char **command)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)number),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof code / sizeof *code, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) fail("seccomp");
	execv(command[0], command);
	fail("execv");
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 3) return 97;
	how = argv[2];
	if (!strcmp(argv[1], "wait")) { say("up", getpid()); wait_line(0); end(how); }
	if (!strcmp(argv[1], "family")) return family();
	if (!strcmp(argv[1], "orphan")) return orphan();
	if (!strcmp(argv[1], "title")) return title(argv);
	if (!strcmp(argv[1], "filtered")) return filtered(atoi(argv[2]), argv + 3);
	if (!strcmp(argv[1], "exec")) { say("up", getpid()); wait_line(0); execv(argv[2], argv + 2); fail("execv"); }
	if (!strcmp(argv[1], "thread")) { thread(); for (;;) pause(); }
	if (!strcmp(argv[1], "leaderless")) { thread(); pthread_exit(NULL); }
	if (!strcmp(argv[1], "threadexec")) { after = argv + 2; thread(); for (;;) pause(); }
	return 96;
}
