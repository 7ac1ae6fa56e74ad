# distutils: language = c++
"""Thin wrappers of the C++ core: they check arguments, make arrays and turn a status into an error.

The headers under ``include/prelude`` hold the structures, their drawings and their contracts. No policy lives
here. Writing calls on one pool belong to one thread at a time (``ConcurrentUse`` tells a second one);
``would_hit`` and the counters may be used from any thread at any time.
"""

from __future__ import annotations

import os

cimport cython
cimport ndarray as cnp
from cpython.list cimport PyList_AsTuple
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GetSlice
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

import numpy as np

cnp.import_ndarray()

# One extension in several files, so that a call from one class into the other stays a C call.
include "declarations.pxi"


include "gil.pxi"
include "arrays.pxi"
include "records.pxi"
include "kv.pxi"
include "packing.pxi"
include "queues.pxi"
include "planning.pxi"
