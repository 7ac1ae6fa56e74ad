# The threads that kernels run in, and the processors that they may run on. Part of cpu.pyx.

cdef extern from "prelude/cpu/thread_pool.hpp" namespace "prelude::cpu" nogil:
    int thread_count()
    void c_set_thread_count "prelude::cpu::set_thread_count"(int count)
    int c_give_threads "prelude::cpu::give_threads"(int count)
    vector[int64_t] pool_ids "prelude::cpu::thread_ids"(int threads) except +


cdef extern from "prelude/cpu/places.hpp" namespace "prelude::cpu" nogil:
    cdef cppclass CThreadPlaces "prelude::cpu::ThreadPlaces":
        CThreadPlaces(vector[int64_t] ids) except +
        void keep_off()
        void give_back()


def threads():
    """How many threads the kernels of the calling thread run in."""
    return thread_count()


def set_threads(int count):
    """``threads`` of every thread that was given no number of its own."""
    c_set_thread_count(count)


def give_threads(int count):
    """Gives the calling thread a number of its own, or takes it away (0). The one that it had before."""
    return c_give_threads(count)


def thread_ids(int threads):
    """Linux's ids of the threads that a kernel of so many runs in when this thread calls it, its own first; an empty
    list on other systems."""
    cdef vector[int64_t] ids
    with nogil:
        ids = pool_ids(threads)
    return list(ids)


@cython.final
cdef class ThreadPlaces:
    """Threads of this process, by Linux's ids, that may be kept off the processor of the thread that wakes them; see
    include/prelude/cpu/places.hpp. Nothing on other systems."""

    cdef CThreadPlaces* c

    def __cinit__(self, ids):
        self.c = new CThreadPlaces(ids)

    def __dealloc__(self):
        del self.c  # gives back

    def keep_off(self) -> None:
        """Until ``give_back`` the threads may not run on the caller's processor."""
        self.c.keep_off()

    def give_back(self) -> None:
        self.c.give_back()
