// numpy's arrays without numpy's headers: the wrappers read arrays and make them. Building then
// needs no numpy, and a wheel serves every numpy from 1.26.
//
//   memory    the fields of an array up to its flags, and of a dtype up to its number, are the same in numpy 1 and 2
//             (NPY_NO_DEPRECATED_API hides them, nothing else)
//   calls     two entries of the table that numpy keeps for extensions, which never move
//   checked   import_ndarray() makes an array and reads it back through both, so that a numpy that did differ would
//             be an ImportError
#pragma once

#include <Python.h>

#include <bit>

// numpy's names, since Cython's declaration of the class is by them.
struct PyArrayObject {
  PyObject_HEAD char* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* descr;
  int flags;
};

namespace prelude::ndarray {

using npy_intp = Py_ssize_t;

// The number of a type of so many bits: numpy names the C types, of which `long` is one or the other.
inline constexpr int NPY_INT32 = sizeof(long) == 4 ? 7 : 5, NPY_INT64 = sizeof(long) == 8 ? 7 : 9;
inline constexpr int NPY_FLOAT32 = 11, NPY_FLOAT64 = 12, NPY_COMPLEX64 = 14, NPY_VOID = 20;

struct DescrHead {
  PyObject_HEAD PyTypeObject* type;
  char kind, letter, byteorder, unused;
  int number;
};

inline constexpr int contiguous = 0x1, aligned = 0x100, writeable = 0x400;
inline void** numpy_api = nullptr;  // written under the GIL by import_ndarray(), read afterwards

inline const DescrHead* dtype_of(const PyArrayObject* a) { return reinterpret_cast<const DescrHead*>(a->descr); }

inline void* PyArray_DATA(PyArrayObject* a) { return a->data; }
inline int PyArray_NDIM(PyArrayObject* a) { return a->nd; }
inline npy_intp* PyArray_DIMS(PyArrayObject* a) { return a->dimensions; }
inline npy_intp PyArray_DIM(PyArrayObject* a, int axis) { return a->dimensions[axis]; }
inline npy_intp PyArray_STRIDE(PyArrayObject* a, int axis) { return a->strides[axis]; }  // in bytes
inline int PyArray_TYPE(PyArrayObject* a) { return dtype_of(a)->number; }
inline npy_intp PyArray_SIZE(PyArrayObject* a) {
  npy_intp n = 1;
  for (int axis = 0; axis < a->nd; ++axis) n *= a->dimensions[axis];
  return n;
}
inline bool PyArray_IS_C_CONTIGUOUS(PyArrayObject* a) { return (a->flags & contiguous) != 0; }

inline bool has(const PyArrayObject* a, int wanted) {
  constexpr char other = std::endian::native == std::endian::little ? '>' : '<';
  return (a->flags & wanted) == wanted && dtype_of(a)->byteorder != other;
}
inline bool PyArray_ISCARRAY_RO(PyArrayObject* a) { return has(a, contiguous | aligned); }
inline bool PyArray_ISCARRAY(PyArrayObject* a) { return has(a, contiguous | aligned | writeable); }

inline PyTypeObject* array_type() { return static_cast<PyTypeObject*>(numpy_api[2]); }
inline bool PyArray_Check(PyObject* object) { return PyObject_TypeCheck(object, array_type()); }

// Aligned, and in this machine's order of bytes; what is written to is writable.
inline bool is_plain(PyArrayObject* a, bool written) { return has(a, written ? aligned | writeable : aligned); }

using New = PyObject*(PyTypeObject*, int, const npy_intp*, int, const npy_intp*, void*, int, int, PyObject*);

// A new array in C order, not filled; owned by the caller. NULL: a Python error is set.
inline PyObject* new_array(int nd, const npy_intp* shape, int type) {
  return reinterpret_cast<New*>(numpy_api[93])(array_type(), nd, shape, type, nullptr, nullptr, 0, 0, nullptr);
}

// -1: a Python error is set.
inline int import_ndarray() {
  PyObject* module = PyImport_ImportModule("numpy._core._multiarray_umath");
  if (!module && PyErr_ExceptionMatches(PyExc_ModuleNotFoundError)) {
    PyErr_Clear();
    module = PyImport_ImportModule("numpy.core._multiarray_umath");  // numpy 1
  }
  PyObject* capsule = module ? PyObject_GetAttrString(module, "_ARRAY_API") : nullptr;
  Py_XDECREF(module);
  if (!capsule) return -1;
  numpy_api = static_cast<void**>(PyCapsule_GetPointer(capsule, nullptr));
  Py_DECREF(capsule);  // numpy keeps its own
  if (!numpy_api) return -1;

  const npy_intp shape[] = {2, 3};
  PyObject* made = new_array(2, shape, NPY_INT32);
  if (!made) return -1;
  auto* a = reinterpret_cast<PyArrayObject*>(made);
  bool right = PyArray_Check(made) && PyArray_NDIM(a) == 2 && PyArray_DIM(a, 0) == 2 && PyArray_DIM(a, 1) == 3 &&
               a->strides[0] == 12 && PyArray_ISCARRAY(a) && PyArray_TYPE(a) == NPY_INT32 && dtype_of(a)->kind == 'i';
  Py_DECREF(made);
  if (right) return 0;
  PyErr_SetString(PyExc_ImportError, "this numpy lays its arrays out in a way that this build does not know");
  return -1;
}

}  // namespace prelude::ndarray
