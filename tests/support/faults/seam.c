/* Numbers every call by which a process changes a file system below chosen roots, SQLite's included.
 *
 * Preloaded into a real process. Armed through seam_arm, it kills the process before call N (or in
 * the middle of a write), lets call N fail, or raises a signal there, and writes a trace from which
 * the durable and the lost part of the disk can be told.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { NOTHING, KILL, TEAR, FAIL, FAIL_FROM, SIGNAL };

static char roots[4][PATH_MAX];
static int root_count, trace = -1, action, code, quiet, whole_group;
static long at, own_count;
static volatile long *count = &own_count; /* shared by all processes of a peer's command */
#define passed (*count)

void seam_root(const char *path) {
  if (root_count < 4) snprintf(roots[root_count++], PATH_MAX, "%s", path);
}

void seam_arm(long number, int what, int with, const char *trace_path) {
  at = number, action = what, code = with, passed = 0;
  trace = trace_path[0] ? open(trace_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
}

/* For programs that cannot call seam_arm: the same from the environment, counted in a shared file. */
__attribute__((constructor)) static void from_environment(void) {
  const char *file = getenv("SEAM_COUNTER"), *root = getenv("SEAM_ROOT"), *number = getenv("SEAM_AT");
  if (!file || !root || !number) return;
  int fd = open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  count = mmap(0, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  seam_root(root);
  at = atol(number), action = KILL, whole_group = 1;
}

static void die(void) {
  kill(whole_group ? 0 : getpid(), SIGKILL);
  for (;;) pause();
}

static void resolve(int dirfd, const char *path, char *out) {
  char link[64], base[PATH_MAX];
  ssize_t length;
  if (path && path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
    return;
  }
  if (dirfd == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) base[0] = 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    length = readlink(link, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
  }
  if (path && path[0]) snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
  else snprintf(out, PATH_MAX, "%s", base);
}

static int inside(const char *path) {
  if (!action && trace < 0) return 0;
  for (int i = 0; i < root_count; i++) {
    size_t n = strlen(roots[i]);
    if (!strncmp(path, roots[i], n) && (path[n] == '/' || !path[n])) return 1;
  }
  return 0;
}

static unsigned long inode(int fd, const char *path) {
  struct stat found;
  if (path ? lstat(path, &found) : fstat(fd, &found)) return 0;
  return (unsigned long)found.st_ino;
}

static void say(const char *op, const char *one, const char *two, unsigned long ino, long number,
                const void *data, size_t size) {
  if (trace < 0) return;
  char *line = malloc(2 * PATH_MAX + 128 + 2 * size), *end = line;
  end += sprintf(end, "%ld\t%s\t%s\t%s\t%lu\t%ld\t", passed, op, one, two, ino, number);
  for (size_t i = 0; i < size; i++) end += sprintf(end, "%02x", ((const unsigned char *)data)[i]);
  *end++ = '\n';
  syscall(1 /* write */, trace, line, end - line);
  free(line);
}

/* Returns 1 when the call must fail with errno set. */
static int point(const char *op, const char *path) {
  passed++;
  if (action == FAIL_FROM && passed >= at) {
    errno = code;
    return 1;
  }
  if (passed != at) return 0;
  if (action == KILL) {
    say("killed-before", op, path, 0, 0, 0, 0);
    die();
  }
  if (action == FAIL) {
    errno = code;
    return 1;
  }
  if (action == SIGNAL) kill(getpid(), code);
  return 0;
}

#define REAL(type, name, ...) \
  static type (*real_##name)(__VA_ARGS__); \
  if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name)

static int open_at(int dirfd, const char *path, int flags, mode_t mode) {
  REAL(int, openat, int, const char *, int, ...);
  char full[PATH_MAX];
  if (!(flags & (O_CREAT | O_TRUNC)) || quiet) return real_openat(dirfd, path, flags, mode);
  resolve(dirfd, path, full);
  if (!inside(full)) return real_openat(dirfd, path, flags, mode);
  int existed = inode(-1, full) != 0;
  if (existed && !(flags & O_TRUNC)) return real_openat(dirfd, path, flags, mode);
  if (point("create", full)) return -1;
  int fd = real_openat(dirfd, path, flags, mode);
  if (fd >= 0) say(existed ? "truncate" : "create", full, "", inode(fd, 0), existed ? 0 : mode, 0, 0);
  return fd;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); }

int open(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int d, const char *path, int flags, ...) { MODE(flags) return open_at(d, path, flags, mode); }
int openat64(int d, const char *path, int flags, ...) { MODE(flags) return open_at(d, path, flags, mode); }

/* stdio opens and writes without passing open and write above: GNU patch works so. */
static FILE *stream_open(const char *path, const char *mode) {
  REAL(FILE *, fopen64, const char *, const char *);
  char full[PATH_MAX];
  resolve(AT_FDCWD, path, full);
  if (mode[0] != 'r' && inside(full) && point("create", full)) return 0;
  return real_fopen64(path, mode);
}

FILE *fopen(const char *path, const char *mode) { return stream_open(path, mode); }
FILE *fopen64(const char *path, const char *mode) { return stream_open(path, mode); }

int fclose(FILE *stream) {
  REAL(int, fclose, FILE *);
  char full[PATH_MAX];
  int fd = fileno(stream);
  if (whole_group && fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) {
    resolve(fd, "", full);
    if (inside(full)) point("write", full);
  }
  return real_fclose(stream);
}

static ssize_t put(int fd, const void *data, size_t size, off_t offset) {
  REAL(ssize_t, pwrite64, int, const void *, size_t, off_t);
  REAL(ssize_t, write, int, const void *, size_t);
  char full[PATH_MAX];
  resolve(fd, "", full);
  if (!inside(full)) return offset < 0 ? real_write(fd, data, size) : real_pwrite64(fd, data, size, offset);
  if (point("write", full)) return -1;
  long where = offset < 0 ? lseek(fd, 0, SEEK_CUR) : offset;
  size_t wanted = action == TEAR && passed == at ? size / 2 : size;
  ssize_t done = offset < 0 ? real_write(fd, data, wanted) : real_pwrite64(fd, data, wanted, offset);
  if (done > 0) say("write", full, "", inode(fd, 0), where, data, done);
  if (action == TEAR && passed == at) {
    die();
  }
  return done;
}

ssize_t write(int fd, const void *data, size_t size) { return put(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return put(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return put(fd, data, size, offset); }

static int sync_with(int fd, int only_data) {
  REAL(int, fsync, int);
  REAL(int, fdatasync, int);
  char full[PATH_MAX];
  resolve(fd, "", full);
  if (inside(full)) {
    if (point("fsync", full)) return -1;
    say("fsync", full, "", inode(fd, 0), 0, 0, 0);
  }
  return only_data ? real_fdatasync(fd) : real_fsync(fd);
}

int fsync(int fd) { return sync_with(fd, 0); }
int fdatasync(int fd) { return sync_with(fd, 1); }

#define TWO(op, call) \
  char one[PATH_MAX], two[PATH_MAX]; \
  resolve(from, old, one), resolve(to, new, two); \
  if (!inside(one) && !inside(two)) return call; \
  if (point(op, two)) return -1; \
  unsigned long ino = inode(-1, one); \
  int done = call; \
  if (!done) say(op, one, two, ino, 0, 0, 0); \
  return done

int renameat(int from, const char *old, int to, const char *new) {
  REAL(int, renameat, int, const char *, int, const char *);
  TWO("rename", real_renameat(from, old, to, new));
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
  REAL(int, linkat, int, const char *, int, const char *, int);
  TWO("link", real_linkat(from, old, to, new, flags));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

#define ONE(op, dirfd, number, call) \
  char full[PATH_MAX]; \
  resolve(dirfd, path, full); \
  if (!inside(full)) return call; \
  unsigned long ino = inode(-1, full); \
  if (point(op, full)) return -1; \
  int done = call; \
  if (!done) say(op, full, "", ino ? ino : inode(-1, full), number, 0, 0); \
  return done

int unlinkat(int dirfd, const char *path, int flags) {
  REAL(int, unlinkat, int, const char *, int);
  char probe[PATH_MAX];
  resolve(dirfd, path, probe);
  if (!inode(-1, probe)) return real_unlinkat(dirfd, path, flags); /* nothing to remove: no step */
  ONE(flags & AT_REMOVEDIR ? "rmdir" : "unlink", dirfd, 0, real_unlinkat(dirfd, path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
  struct stat found;
  int directory = !lstat(path, &found) && S_ISDIR(found.st_mode);
  return unlinkat(AT_FDCWD, path, directory ? AT_REMOVEDIR : 0);
}

int mkdirat(int dirfd, const char *path, mode_t mode) {
  REAL(int, mkdirat, int, const char *, mode_t);
  char probe[PATH_MAX];
  resolve(dirfd, path, probe);
  if (inode(-1, probe)) return real_mkdirat(dirfd, path, mode);
  ONE("mkdir", dirfd, mode, real_mkdirat(dirfd, path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int ftruncate64(int fd, off_t size) {
  REAL(int, ftruncate64, int, off_t);
  const char *path = "";
  ONE("truncate", fd, size, real_ftruncate64(fd, size));
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int fchmod(int fd, mode_t mode) {
  REAL(int, fchmod, int, mode_t);
  const char *path = "";
  ONE("chmod", fd, mode, real_fchmod(fd, mode));
}
int fchmodat(int dirfd, const char *path, mode_t mode, int flags) {
  REAL(int, fchmodat, int, const char *, mode_t, int);
  ONE("chmod", dirfd, mode, real_fchmodat(dirfd, path, mode, flags));
}
int chmod(const char *path, mode_t mode) {
  REAL(int, chmod, const char *, mode_t);
  ONE("chmod", AT_FDCWD, mode, real_chmod(path, mode));
}
int fchown(int fd, uid_t user, gid_t group) {
  REAL(int, fchown, int, uid_t, gid_t);
  const char *path = "";
  ONE("chown", fd, 0, real_fchown(fd, user, group));
}

static int time_of(int dirfd, const char *name, const struct timespec times[2], int flags) {
  REAL(int, utimensat, int, const char *, const struct timespec[2], int);
  REAL(int, futimens, int, const struct timespec[2]);
  const char *path = name ? name : "";
  char full[PATH_MAX], text[64] = "";
  resolve(dirfd, path, full);
#define TIMES (name ? real_utimensat(dirfd, name, times, flags) : real_futimens(dirfd, times))
  if (!inside(full)) return TIMES;
  if (point("utime", full)) return -1;
  int done = TIMES;
  if (times) snprintf(text, sizeof text, "%lld", times[1].tv_sec * 1000000000LL + times[1].tv_nsec);
  if (!done) say("utime", full, text, name ? inode(-1, full) : inode(dirfd, 0), 0, 0, 0);
  return done;
}

int utimensat(int d, const char *p, const struct timespec t[2], int f) { return time_of(d, p, t, f); }
int futimens(int fd, const struct timespec t[2]) { return time_of(fd, 0, t, 0); }

int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags) {
  REAL(int, fsetxattr, int, const char *, const void *, size_t, int);
  const char *path = "";
  ONE("xattr", fd, 0, real_fsetxattr(fd, name, value, size, flags));
}
