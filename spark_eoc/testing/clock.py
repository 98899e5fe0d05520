"""A wall clock that jumps, for the processes that are started with its environment.

    with Clock(folder) as clock:
        supervisor = Supervisor(command, ..., clock=clock)     # and Kill.CLOCK in the schedule
        clock.set(-3 * 3600)                                    # for all of them, at once

As when somebody sets a machine's clock: only the time of day jumps. Waits and time limits go on as
they are, and file times stay those of the kernel. What stands between the programs and the C
library is a few lines of C, which need a compiler (any: tcc is the smallest).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from spark_eoc.testing.programs import MissingServerError

#: Wall-clock deadlines are given back as the kernel knows them; those of the monotonic clock, which
#: begins at the boot, are told apart by being small.
_SHIM = """
struct moment { long seconds, fraction; };
extern void *dlsym(void *, const char *);
extern char *getenv(const char *);
extern int open(const char *, int, ...);
extern int close(int);
extern void *mmap(void *, unsigned long, int, int, int, long);
#define NEXT ((void *) -1L)

static volatile long *shared;

static long ahead(void) {
    if (!shared) {
        const char *path = getenv("EOC_CLOCK");
        int file = path ? open(path, 0) : -1;
        void *page = file < 0 ? (void *) -1L : mmap(0, 8, 1, 1, file, 0);
        if (file >= 0) close(file);
        if (page == (void *) -1L) return 0;
        shared = page;
    }
    return *shared;
}

int clock_gettime(int clock, struct moment *now) {
    static int (*next)(int, struct moment *);
    if (!next) next = dlsym(NEXT, "clock_gettime");
    int failed = next(clock, now);
    if (!failed && (clock == 0 || clock == 5)) now->seconds += ahead();
    return failed;
}

int gettimeofday(struct moment *now, void *zone) {
    int failed = clock_gettime(0, now);
    now->fraction /= 1000;
    return failed;
}

long time(long *result) {
    struct moment now;
    clock_gettime(0, &now);
    if (result) *result = now.seconds;
    return now.seconds;
}

static const struct moment *truly(const struct moment *until, struct moment *place) {
    if (!until || until->seconds < 500000000) return until;
    *place = *until;
    place->seconds -= ahead();
    return place;
}

int sem_timedwait(void *semaphore, const struct moment *until) {
    static int (*next)(void *, const struct moment *);
    struct moment place;
    if (!next) next = dlsym(NEXT, "sem_timedwait");
    return next(semaphore, truly(until, &place));
}

int pthread_cond_timedwait(void *condition, void *mutex, const struct moment *until) {
    static int (*next)(void *, void *, const struct moment *);
    struct moment place;
    if (!next) next = dlsym(NEXT, "pthread_cond_timedwait");
    return next(condition, mutex, truly(until, &place));
}
"""


class Clock:
    """One clock for all processes that have its ``environment``; a context manager.

    Raises MissingServerError where there is no C compiler.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        _compile(self.folder)
        (self.folder / "ahead").write_bytes(bytes(8))
        self.jumps: list[int] = []

    def set(self, ahead_s: int) -> None:
        """It is ``ahead_s`` seconds ahead of the real one from now on; below 0 behind it."""
        with open(self.folder / "ahead", "r+b", buffering=0) as file:
            file.write(struct.pack("q", ahead_s))
        self.jumps.append(ahead_s)

    @property
    def environment(self) -> dict[str, str]:
        """For the processes that are to live by it, and all that they start."""
        return {
            "LD_PRELOAD": str(self.folder / "clock.so"),
            "EOC_CLOCK": str(self.folder / "ahead"),
        }

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: object) -> None:
        """The real time again, for whoever still lives by it."""
        self.set(0)


def _compile(folder: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("tcc")
    if compiler is None:
        raise MissingServerError("there is no C compiler", next_step="apt-get install -y tcc")
    source = folder / "clock.c"
    source.write_text(_SHIM)
    command = [compiler, "-w", "-shared", "-fPIC", "-nostdlib", "-o", str(folder / "clock.so")]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
