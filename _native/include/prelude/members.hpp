// Instances of dataclasses with members, filled where they lie: a member is a pointer at an offset of its object,
// which the class's own descriptor knows.
#pragma once

#include <Python.h>
#include <structmember.h>

namespace prelude {

// Where the member behind an attribute of `kind` lies in an instance; -1: it is no member of `kind` that holds an
// object.
inline Py_ssize_t member_offset(PyObject* kind, PyObject* descriptor) {
  if (!PyType_Check(kind) || !Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return -1;
  if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(kind), PyDescr_TYPE(descriptor))) return -1;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  return member->type == T_OBJECT_EX ? member->offset : -1;
}

// The object in a member, borrowed; the object is of the class that the offset is from. NULL: nothing.
inline PyObject* member_of(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

// A new instance with `values` in its members, owned by the caller; no __init__ runs. NULL: a Python error is set.
inline PyObject* new_filled(PyTypeObject* kind, const Py_ssize_t* offsets, PyObject* const* values,
                            Py_ssize_t count) {
  PyObject* made = kind->tp_alloc(kind, 0);
  if (made == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(made) + offsets[i]) = Py_NewRef(values[i]);
  }
  return made;
}

}  // namespace prelude
