# The threads that kernels run in, which are torch's, and the processors that they may run on. Part of cpu.pyx.

cdef extern from "prelude/cpu/parallel.hpp" namespace "prelude::cpu" nogil:
    vector[int64_t] borrowed_ids "prelude::cpu::thread_ids"(Fork, int threads) except +


cdef extern from "prelude/cpu/places.hpp" namespace "prelude::cpu" nogil:
    cdef cppclass CThreadPlaces "prelude::cpu::ThreadPlaces":
        CThreadPlaces(vector[int64_t] ids) except +
        void keep_off()
        void give_back()


def borrow_threads(uintptr_t entry):
    """Address of ``GOMP_parallel``, or 0: everything runs in the calling thread."""
    global fork
    fork = <Fork> entry


def has_threads():
    return fork != NULL


def thread_ids(int threads):
    """Linux's ids of the borrowed threads that a call with so many runs in, the caller's among them, in no order; an
    empty list on other systems."""
    cdef vector[int64_t] ids
    with nogil:
        ids = borrowed_ids(fork, threads)
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
