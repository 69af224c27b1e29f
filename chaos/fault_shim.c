// Faults of the disk and the clock, in one process: loaded with LD_PRELOAD, controlled through a mapped file.
//
// The file named by HEADGATE_FAULTS contains ten 64-bit integers: five faults, set by chaos/fault_shim.py, and how
// often each had an effect. Without the variable, or while all faults are 0, every call passes through.
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
#include <stdlib.h>
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

__attribute__((constructor)) static void start(void) {
    if (real_clock_gettime) return;
    real_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
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

// As a disk that fills up: the first half of the data fits, the rest does not.
ssize_t write(int handle, const void *data, size_t size) {
    start();
    if (value_of(&faults->disk_full) && kind_of(handle) == S_IFREG) {
        if (size > 1 && lseek(handle, 0, SEEK_CUR) == 0) return real_write(handle, data, size / 2);
        count(&faults->refused_writes);
        errno = ENOSPC;
        return -1;
    }
    return real_write(handle, data, size);
}

static int synchronize(int handle, int (*real)(int)) {
    mode_t kind = kind_of(handle);
    int64_t delay_ms = value_of(&faults->sync_delay_ms);
    if (delay_ms > 0 && kind == S_IFREG) {
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
    return real(handle);
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
