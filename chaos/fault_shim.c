// Faults of the disk and the clock, in one process: loaded with LD_PRELOAD, controlled through a mapped file.
//
// The file named by HEADGATE_FAULTS contains ten 64-bit integers: five faults, set by chaos/fault_shim.py, and how
// often each had an effect. Without the variable, or while all faults are 0, every call passes through.
//
// The file named by HEADGATE_JOURNAL, which all processes share, gets a line for each new name of a file ("+ PATH"; "~ PATH"
// if its data was not synced before), and for each synced folder ("= PATH"): what a power failure would lose.
//
// Python 3.13's allocator reads the clock in a constructor that may run before this library's, so every call makes sure
// that the real functions are known.
//
// Only regular files and folders are affected: not sockets and pipes, and not standard output and error.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct faults {
    int64_t clock_offset_ms, sync_delay_ms, disk_full, file_sync_fails, folder_sync_fails;
    int64_t shifted_reads, delayed_syncs, refused_writes, failed_file_syncs, failed_folder_syncs;
};

static struct faults none;
static struct faults *faults = &none;
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_linkat)(int, const char *, int, const char *, int);
static int journal = -1;
static char is_unsynced[4096];  // By file descriptor; one above is never called unsynced.

__attribute__((constructor)) static void start(void) {
    if (real_clock_gettime) return;
    real_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    real_linkat = (int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat");
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *shared = getenv("HEADGATE_JOURNAL");
    if (shared) journal = open(shared, O_WRONLY | O_APPEND | O_CLOEXEC);
    const char *path = getenv("HEADGATE_FAULTS");
    int handle = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (handle >= 0) {
        void *mapped = mmap(0, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
        if (mapped != MAP_FAILED) faults = mapped;
        close(handle);
    }
}

static int64_t value_of(int64_t *field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }
static void count(int64_t *field) { __atomic_add_fetch(field, 1, __ATOMIC_RELAXED); }

static mode_t kind_of(int handle) {
    struct stat found;
    return handle > STDERR_FILENO && fstat(handle, &found) == 0 ? found.st_mode & S_IFMT : 0;
}

static void set_unsynced(int handle, char value) {
    if (handle < (int)sizeof is_unsynced) is_unsynced[handle] = value;
}

// One write, so that lines of several processes do not mix. The order is that of the ends of the real calls.
static void note(char sign, int folder, const char *name) {
    char link[32], path[4096], line[8300];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (journal < 0 || size < 0) return;
    path[size] = 0;
    int length = snprintf(line, sizeof line, "%c %s%s%s\n", sign, path, *name ? "/" : "", name);
    if (real_write(journal, line, length) != length) abort();
}

int linkat(int from_folder, const char *from, int folder, const char *name, int flags) {
    start();
    int outcome = real_linkat(from_folder, from, folder, name, flags), source = -1;
    if (outcome == 0 && folder >= 0) {
        int known = sscanf(from, "/proc/self/fd/%d", &source) == 1 && source < (int)sizeof is_unsynced;
        note(known && is_unsynced[source] ? '~' : '+', folder, name);
    }
    return outcome;
}

// As a disk that fills up: the first half of the data fits, the rest does not.
ssize_t write(int handle, const void *data, size_t size) {
    start();
    if (value_of(&faults->disk_full) && kind_of(handle) == S_IFREG) {
        if (size > 1 && lseek(handle, 0, SEEK_CUR) == 0) return real_write(handle, data, size / 2);
        count(&faults->refused_writes);
        errno = ENOSPC;
        return -1;
    }
    if (journal >= 0) set_unsynced(handle, 1);
    return real_write(handle, data, size);
}

static int synchronize(int handle, int (*real)(int)) {
    mode_t kind = kind_of(handle);
    int64_t delay_ms = value_of(&faults->sync_delay_ms);
    if (delay_ms > 0 && kind) {
        struct timespec pause = {delay_ms / 1000, delay_ms % 1000 * 1000000};
        count(&faults->delayed_syncs);
        nanosleep(&pause, 0);
    }
    if (value_of(&faults->file_sync_fails) && kind == S_IFREG) {
        count(&faults->failed_file_syncs);
        errno = EIO;
        return -1;
    }
    if (value_of(&faults->folder_sync_fails) && kind == S_IFDIR) {
        count(&faults->failed_folder_syncs);
        errno = EIO;
        return -1;
    }
    int outcome = real(handle);
    if (journal >= 0 && outcome == 0) {
        set_unsynced(handle, 0);
        if (kind == S_IFDIR) note('=', handle, "");
    }
    return outcome;
}

int fsync(int handle) {
    start();
    return synchronize(handle, real_fsync);
}

int fdatasync(int handle) {
    start();
    return synchronize(handle, real_fdatasync);
}

// The steps are whole seconds and milliseconds of the wall clock; the monotonic clocks never step.
int clock_gettime(clockid_t clock, struct timespec *now) {
    start();
    int outcome = real_clock_gettime(clock, now);
    int64_t offset_ms = value_of(&faults->clock_offset_ms);
    if (offset_ms && outcome == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t nanoseconds = now->tv_nsec + offset_ms % 1000 * 1000000;
        now->tv_sec += offset_ms / 1000 + (nanoseconds >= 1000000000) - (nanoseconds < 0);
        now->tv_nsec = (nanoseconds + 1000000000) % 1000000000;
        count(&faults->shifted_reads);
    }
    return outcome;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}
