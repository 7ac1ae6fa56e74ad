# The parts of numpy's arrays that the wrappers use: see prelude/ndarray.hpp. The names are those of numpy's own
# declarations.
from libc.stdint cimport uint8_t

cdef extern from "prelude/ndarray.hpp" namespace "prelude::ndarray":
    ctypedef Py_ssize_t npy_intp
    const int NPY_INT32, NPY_INT64, NPY_FLOAT32, NPY_FLOAT64, NPY_COMPLEX64, NPY_VOID

cdef extern from "prelude/ndarray.hpp":
    ctypedef class numpy.ndarray [object PyArrayObject, check_size ignore]:
        @property
        cdef inline npy_intp size(self) noexcept nogil:
            return PyArray_SIZE(self)

        @property
        cdef inline npy_intp* shape(self) noexcept nogil:
            return PyArray_DIMS(self)

cdef extern from "prelude/ndarray.hpp" namespace "prelude::ndarray":
    void* PyArray_DATA(ndarray) noexcept nogil
    int PyArray_NDIM(ndarray) noexcept nogil
    npy_intp* PyArray_DIMS(ndarray) noexcept nogil
    npy_intp PyArray_DIM(ndarray, int) noexcept nogil
    npy_intp PyArray_SIZE(ndarray) noexcept nogil
    npy_intp PyArray_STRIDE(ndarray, int) noexcept nogil
    int PyArray_TYPE(ndarray) noexcept nogil
    bint is_plain(ndarray, bint written) noexcept nogil
    bint PyArray_IS_C_CONTIGUOUS(ndarray) noexcept nogil
    bint PyArray_ISCARRAY_RO(ndarray) noexcept nogil
    bint PyArray_Check(object) noexcept
    object new_array(int, const npy_intp*, int)
    int import_ndarray() except -1
