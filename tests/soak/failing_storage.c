/* Preloaded into processes, has one of their file operations below a folder fail, or all from there on for a while.

   tests/soak/failing_storage.py builds this, arms it, and asks it what it met. All processes that inherit the variable
   count together, in the file that it names. What the C library's functions are asked through others of their kind, as
   fopen's writes, is not seen; Python, Arrow, safetensors and SQLite don't ask so. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct shared {
    char below[PATH_MAX];       /* the folder */
    char failed[PATH_MAX + 32]; /* the operation that failed first, and where */
    long number, met;           /* of the operation that is to fail; how many there were */
    long lasting, since;        /* nanoseconds that others fail as well; when the first did, 0 before */
    int with, armed;            /* its errno; whether operations count and fail */
};
static struct shared *all;

/* Map what the processes share; the first one makes the file. */
__attribute__((constructor)) static void share(void) {
    const char *path = getenv("STORAGE_STATE");
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, sizeof *all)) return;
    void *mapped = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) all = mapped;
}

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

void storage_arm(const char *folder, long which, int error, double seconds) {
    strncpy(all->below, folder, sizeof all->below - 1);
    all->number = which, all->with = error, all->lasting = seconds * 1e9;
    all->met = all->since = all->failed[0] = 0, all->armed = 1;
}

void storage_disarm(void) { all->armed = 0; }

long storage_met(void) { return all->met; }

const char *storage_failed(void) { return all->failed; }

/* Whether an operation wants room: a full disk fails no other. */
static int fills(const char *operation) {
    return !strcmp(operation, "write") || !strcmp(operation, "create") || !strcmp(operation, "make") ||
           !strcmp(operation, "sync") || !strcmp(operation, "close");
}

/* Whether an operation fails; errno says why. */
static int fails(const char *operation, const char *path) {
    if (!all || !all->armed || !path) return 0;
    size_t length = strlen(all->below);
    if (strncmp(path, all->below, length) || (path[length] != '/' && path[length])) return 0;
    if (all->with == ENOSPC && !fills(operation)) return 0;
    int is_first = __atomic_add_fetch(&all->met, 1, __ATOMIC_SEQ_CST) == all->number;
    if (is_first) {
        snprintf(all->failed, sizeof all->failed, "%s %s", operation, path + length);
        __atomic_store_n(&all->since, now(), __ATOMIC_SEQ_CST);
    }
    long since = __atomic_load_n(&all->since, __ATOMIC_SEQ_CST);
    int fail = is_first || (since && now() - since < all->lasting);
    if (fail) errno = all->with;
    return fail;
}

/* The path of an open file, or of one beside it; none of what is no file. */
static const char *of(int descriptor, char *place) {
    char link[64];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = all && all->armed ? readlink(link, place, PATH_MAX - 1) : -1;
    errno = before;
    if (length <= 0 || place[0] != '/') return NULL;
    place[length] = 0;
    return place;
}

static const char *at(int folder, const char *path, char *place) {
    if (!all || !all->armed || !path) return NULL;
    if (path[0] == '/') return path;
    if (folder == AT_FDCWD ? !getcwd(place, PATH_MAX) : !of(folder, place)) return NULL;
    size_t length = strlen(place);
    snprintf(place + length, PATH_MAX - length, "/%s", path);
    return place;
}

/* An empty path is the open file's own. Rust asks for none at all, once storage has failed, to see if it may ask so;
   where this were inlined, statx's declaration would have the compiler take that for impossible. */
static __attribute__((noinline, noipa)) const char *itself_or_at(int folder, const char *path, char *place) {
    return path && !*path ? of(folder, place) : at(folder, path, place);
}

#define NAMED(path) at(AT_FDCWD, path, place)
#define FAILING(result, name, parameters, arguments, bad, operation, path)       \
    result name parameters {                                                     \
        static result(*next) parameters;                                         \
        char place[PATH_MAX];                                                    \
        if (!next) next = (result(*) parameters)dlsym(RTLD_NEXT, #name);         \
        return fails(operation, path) ? bad : next arguments;                    \
    }
#define OPENING(name, first, first_argument, folder)                             \
    int name(first const char *path, int flags, ...) {                           \
        static int (*next)(first const char *, int, ...);                        \
        char place[PATH_MAX];                                                    \
        va_list rest;                                                            \
        va_start(rest, flags);                                                   \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;  \
        va_end(rest);                                                            \
        if (!next) next = (int (*)(first const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        const char *operation = flags & O_CREAT ? "create" : "open";             \
        return fails(operation, at(folder, path, place)) ? -1 : next(first_argument path, flags, mode); \
    }
#define NOTHING
#define FOLDER int folder,
#define FOLDER_ARGUMENT folder,

OPENING(open, NOTHING, NOTHING, AT_FDCWD)
OPENING(open64, NOTHING, NOTHING, AT_FDCWD)
OPENING(openat, FOLDER, FOLDER_ARGUMENT, folder)
OPENING(openat64, FOLDER, FOLDER_ARGUMENT, folder)
FAILING(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL, "open", NAMED(path))
FAILING(FILE *, fopen64, (const char *path, const char *mode), (path, mode), NULL, "open", NAMED(path))
FAILING(DIR *, opendir, (const char *path), (path), NULL, "list", NAMED(path))
FAILING(DIR *, fdopendir, (int file), (file), NULL, "list", of(file, place))
FAILING(ssize_t, read, (int file, void *to, size_t size), (file, to, size), -1, "read", of(file, place))
FAILING(ssize_t, pread, (int file, void *to, size_t size, off_t from), (file, to, size, from), -1, "read", of(file, place))
FAILING(ssize_t, pread64, (int file, void *to, size_t size, off64_t from), (file, to, size, from), -1, "read", of(file, place))
FAILING(ssize_t, write, (int file, const void *from, size_t size), (file, from, size), -1, "write", of(file, place))
FAILING(int, fsync, (int file), (file), -1, "sync", of(file, place))
FAILING(int, ftruncate, (int file, off_t size), (file, size), -1, "cut", of(file, place))
FAILING(int, ftruncate64, (int file, off64_t size), (file, size), -1, "cut", of(file, place))
FAILING(int, truncate, (const char *path, off_t size), (path, size), -1, "cut", NAMED(path))
FAILING(int, truncate64, (const char *path, off64_t size), (path, size), -1, "cut", NAMED(path))
FAILING(int, flock, (int file, int how), (file, how), -1, "lock", of(file, place))
FAILING(int, rename, (const char *path, const char *to), (path, to), -1, "rename", NAMED(path))
FAILING(int, renameat, (int a, const char *path, int b, const char *to), (a, path, b, to), -1, "rename", at(a, path, place))
FAILING(int, mkdir, (const char *path, mode_t mode), (path, mode), -1, "make", NAMED(path))
FAILING(int, rmdir, (const char *path), (path), -1, "delete", NAMED(path))
FAILING(int, unlink, (const char *path), (path), -1, "delete", NAMED(path))
FAILING(int, unlinkat, (int folder, const char *path, int how), (folder, path, how), -1, "delete", at(folder, path, place))
FAILING(int, stat, (const char *path, struct stat *to), (path, to), -1, "look at", NAMED(path))
FAILING(int, stat64, (const char *path, struct stat64 *to), (path, to), -1, "look at", NAMED(path))
FAILING(int, lstat, (const char *path, struct stat *to), (path, to), -1, "look at", NAMED(path))
FAILING(int, lstat64, (const char *path, struct stat64 *to), (path, to), -1, "look at", NAMED(path))
FAILING(int, statx, (int folder, const char *path, int how, unsigned what, struct statx *to), (folder, path, how, what, to),
        -1, "look at", itself_or_at(folder, path, place))
FAILING(int, access, (const char *path, int how), (path, how), -1, "look at", NAMED(path))
FAILING(void *, mmap, (void *to, size_t size, int may, int how, int file, off_t begin), (to, size, may, how, file, begin),
        MAP_FAILED, "map", file < 0 ? NULL : of(file, place))
FAILING(void *, mmap64, (void *to, size_t size, int may, int how, int file, off64_t begin), (to, size, may, how, file, begin),
        MAP_FAILED, "map", file < 0 ? NULL : of(file, place))
FAILING(ssize_t, sendfile64, (int to, int from, off64_t *begin, size_t size), (to, from, begin, size), -1, "write", of(to, place))
FAILING(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned how),
        (from, a, to, b, size, how), -1, "write", of(to, place))

/* A network's disk tells only here of what it could not write. The file is closed all the same. */
int close(int file) {
    static int (*next)(int);
    char place[PATH_MAX];
    int before = errno;
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "close");
    int is_written = all && all->armed && (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int failing = is_written && fails("close", of(file, place));
    errno = before;
    int result = next(file);
    if (!failing) return result;
    errno = all->with;
    return -1;
}
