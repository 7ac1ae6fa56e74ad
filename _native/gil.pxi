# One native call may let go of the GIL: where it expects enough work. Between the two calls here only C++ runs, which
# touches no Python object and throws nothing. Part of core.pyx and cpu.pyx.

cdef extern from "Python.h" nogil:
    ctypedef struct PyThreadState:
        pass
    PyThreadState* PyEval_SaveThread() noexcept
    void PyEval_RestoreThread(PyThreadState* state) noexcept


cdef inline PyThreadState* _let_go(cbool worth) noexcept:
    return PyEval_SaveThread() if worth else NULL


cdef inline void _take_back(PyThreadState* state) noexcept:
    if state != NULL:
        PyEval_RestoreThread(state)
