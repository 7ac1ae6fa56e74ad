# From ids to str, with nothing made between if the decoder is byte-level; and pairs as lists.

cdef extern from *:
    """
    #include "bridge.hpp"
    #include "text/utf8.hpp"

    namespace {

    // The value of a Python int of one digit (2^30 and more has two), or -1.
    inline int64_t small_int(PyObject* o) {
      if (!PyLong_CheckExact(o)) return -1;
    #if PY_VERSION_HEX >= 0x030C0000
      PyLongObject* l = reinterpret_cast<PyLongObject*>(o);
      return PyUnstable_Long_IsCompact(l) ? static_cast<int64_t>(PyUnstable_Long_CompactValue(l)) : -1;
    #else
      Py_ssize_t size = Py_SIZE(o);
      if (size == 1) return static_cast<int64_t>(reinterpret_cast<PyLongObject*>(o)->ob_digit[0]);
      return size == 0 ? 0 : -1;
    #endif
    }

    // The ids of a list up to the first that is not small, which ids_of then takes up; how many there were.
    inline size_t small_ints(PyObject* const* items, size_t n, std::vector<uint32_t>& out) {
      out.resize(n);
      for (size_t i = 0; i < n; ++i) {
        int64_t value = small_int(items[i]);
        if (value < 0) {
          out.resize(i);
          return i;
        }
        out[i] = static_cast<uint32_t>(value);
      }
      return n;
    }

    // The text of byte-level ids. The bytes are put where an ASCII str has them; invalid ones become U+FFFD, as
    // many as Rust makes of them: Python's "replace" has the same rule.
    inline PyObject* text_of_bytes(const fasttoken::Core& t, const std::vector<uint32_t>& ids, bool skip) {
      size_t n = t.byte_count(ids, skip);
      PyObject* text = PyUnicode_New(static_cast<Py_ssize_t>(n), 127);
      if (!text || n == 0) return text;
      char* data = reinterpret_cast<char*>(PyUnicode_1BYTE_DATA(text));
      t.put_bytes(ids, skip, data, n);
      if (fasttoken::is_ascii({data, n})) return text;
      PyObject* decoded = PyUnicode_DecodeUTF8(data, static_cast<Py_ssize_t>(n), "replace");
      Py_DECREF(text);
      return decoded;
    }

    // A tuple for two numbers, which the collector does not know: it has nothing to find there. Past the
    // dropped tuples that CPython keeps, a tuple that the collector never knew costs less.
    inline PyObject* new_pair(size_t made) {
    #if PY_VERSION_HEX < 0x030E0000 && !defined(PYPY_VERSION)
      constexpr size_t kept = 2000;
      if (made >= kept) return reinterpret_cast<PyObject*>(PyObject_GC_NewVar(PyTupleObject, &PyTuple_Type, 2));
    #endif
      PyObject* tuple = PyTuple_New(2);
      if (tuple) PyObject_GC_UnTrack(tuple);
      return tuple;
    }

    // The pairs of short texts are made once: [begin][end - begin], with the GIL held.
    constexpr uint32_t pairs_begin = 2048, pairs_length = 16;
    PyObject* pairs_made[pairs_begin][pairs_length];

    // [begin, end) columns as a list of tuples. Past the shared ints, a number that two neighbours share is one object.
    inline PyObject* list_of_pairs(const int32_t* pairs, size_t n) {
      PyObject* list = PyList_New(static_cast<Py_ssize_t>(n));
      if (!list) return nullptr;
      PyObject* last = nullptr;
      int32_t last_value = -1;
      auto number = [&](int32_t value) {
        if (static_cast<uint32_t>(value) < shared_int_count) return take_shared(shared_ints[value]);
        if (value != last_value || !last) {
          Py_XDECREF(last);
          last = PyLong_FromLong(value);
          last_value = value;
        }
        Py_XINCREF(last);
        return last;
      };
      // No other code runs until the list is there, and nothing in it has anything for the collector to find.
      bool collecting = PyGC_Disable();
      for (size_t i = 0; i < n; ++i) {
        const uint32_t from = static_cast<uint32_t>(pairs[2 * i]), to = static_cast<uint32_t>(pairs[2 * i + 1]);
        PyObject** made = from < pairs_begin && to - from < pairs_length ? &pairs_made[from][to - from] : nullptr;
        if (made && *made) {
          Py_INCREF(*made);
          PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), *made);
          continue;
        }
        PyObject *begin = number(pairs[2 * i]), *end = begin ? number(pairs[2 * i + 1]) : nullptr;
        PyObject* tuple = end ? new_pair(i) : nullptr;
        if (!tuple) {
          Py_XDECREF(begin);
          Py_XDECREF(end);
          Py_CLEAR(list);
          break;
        }
        PyTuple_SET_ITEM(tuple, 0, begin);
        PyTuple_SET_ITEM(tuple, 1, end);
        PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), tuple);
        if (made) {
          Py_INCREF(tuple);
          *made = tuple;
        }
      }
      if (collecting) PyGC_Enable();
      Py_XDECREF(last);
      return list;
    }

    }  // namespace
    """
    int64_t small_int(PyObject*)
    size_t small_ints(PyObject** items, size_t n, vector[uint32_t]& out)
    object text_of_bytes(const Core&, const vector[uint32_t]&, cbool) except +raise_core
    object list_of_pairs(const int32_t*, size_t)

cdef extern from "Python.h":
    bint PySequence_Check(object)
    ctypedef struct PyListPeek "PyListObject":
        PyObject** ob_item


cdef int ids_of(object ids, vector[uint32_t]& out) except -1:
    """Ids from any sequence of integers; an id without a token is -1 here and decodes to nothing."""
    cdef Py_ssize_t i = 0, n
    cdef long long value
    cdef cnp.ndarray flat
    cdef const int64_t* column
    if type(ids) is list:
        i = small_ints((<PyListPeek*> ids).ob_item, len(ids), out)
        if i == len(ids):
            return 0
        ids = ids[i:]
    elif isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise TypeError(f"expected a row of ids, not an array of shape {ids.shape}")
        if ids.size and ids.dtype.kind not in "iub":
            raise TypeError(f"expected integers, not an array of {ids.dtype}")
        flat = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)
        column = <const int64_t*> cnp.PyArray_DATA(flat)  # no typed memoryview: see trim_offsets
        n = flat.shape[0]
        out.reserve(n)
        for i in range(n):
            value = column[i]
            if value < 0:
                raise OverflowError("can't convert negative int to unsigned")
            if value > 0xFFFFFFFF:
                raise OverflowError("out of range integral type conversion attempted")
            out.push_back(<uint32_t> value)
        return 0
    elif not isinstance(ids, (list, tuple)):
        if isinstance(ids, str) or not PySequence_Check(ids):  # a set has no order, a dict other keys than ids
            raise TypeError(f"expected a sequence of ids, not {type(ids).__name__}")
        ids = list(ids)
    out.reserve(out.size() + len(ids))
    for item in ids:
        value = item if type(item) is int else index(item)  # a float is no id
        if value < 0:
            raise OverflowError("can't convert negative int to unsigned")
        if value > 0xFFFFFFFF:
            raise OverflowError("out of range integral type conversion attempted")
        out.push_back(<uint32_t> value)
    return 0


def id_list(ids):
    """A row of ids, of any kind that decode() takes, as a list."""
    cdef vector[uint32_t] column
    ids_of(ids, column)
    return column
