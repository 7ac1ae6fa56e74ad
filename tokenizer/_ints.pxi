# The int objects of ids, which all tokenizers of a process share; included by _core.pyx. A list that is in use is never
# changed: a longer one is made of the same objects and more.
#
# Ids are many, and so are the pages that as many objects of Python's allocator would touch for the first time. On the
# CPythons that are known they are put side by side on huge pages instead, each a copy of an int of one digit with
# another digit, so that the address of each is known from its number. References that are never given back keep each of
# them. If a count has 64 bits and does not mark objects as immortal (before CPython 3.12), these references are 2^60,
# and references that a list takes are not counted: at a billion drops a second they last for 36 years.

cdef extern from *:
    """
    #include <cstring>

    #include "memory/big_array.hpp"

    namespace {

    constexpr Py_ssize_t cached_ints = 257;  // CPython has its own of those below

    #if PY_VERSION_HEX < 0x030C0000 && !defined(PYPY_VERSION) && !defined(Py_REF_DEBUG) && SIZEOF_SIZE_T == 8
    constexpr Py_ssize_t for_ever = Py_ssize_t{1} << 60;
    inline void keep_for_ever(PyObject* item) { Py_SET_REFCNT(item, Py_REFCNT(item) + for_ever); }
    inline PyObject* take_shared(PyObject* item) { return item; }
    #else
    inline void keep_for_ever(PyObject*) {}
    inline PyObject* take_shared(PyObject* item) {
      Py_INCREF(item);
      return item;
    }
    #endif

    #if PY_VERSION_HEX < 0x030F0000 && !defined(PYPY_VERSION) && !defined(Py_GIL_DISABLED) && !defined(Py_TRACE_REFS)
    constexpr size_t int_bytes = offsetof(PyLongObject,
    #if PY_VERSION_HEX >= 0x030C0000
                                          long_value.ob_digit
    #else
                                          ob_digit
    #endif
                                          ) + sizeof(digit);
    struct alignas(16) IntPlace {
      char bytes[(int_bytes + 15) / 16 * 16];
    };

    // Those below cached_ints, and the others, counted from 0 too; of all below `end`.
    struct IntsByAddress {
      IntPlace *small = nullptr, *large = nullptr;
      Py_ssize_t end = 0;
    };
    IntsByAddress by_address;  // written with the GIL held, like `_ints`
    constexpr Py_ssize_t most_by_address = Py_ssize_t{1} << 20;  // room that costs memory as far as it is used

    inline PyObject* int_at(Py_ssize_t i) {
      return reinterpret_cast<PyObject*>((i < cached_ints ? by_address.small : by_address.large) + i);
    }
    inline bool is_by_address(Py_ssize_t end) { return end <= by_address.end; }

    // Into items[from .. to), if those before are already: whether they could be made.
    inline bool put_ints(PyObject** items, Py_ssize_t from, Py_ssize_t to) {
      if (to > most_by_address || to > Py_ssize_t{1} << PyLong_SHIFT || to <= from) return false;
      // Nor behind others that lie elsewhere, as they do if there was no memory for these before.
      if (from != (by_address.end ? by_address.end : cached_ints)) return false;
      PyObject* sample = PyLong_FromSsize_t(cached_ints);
      if (!sample || Py_REFCNT(sample) != 1) {
        Py_XDECREF(sample);
        PyErr_Clear();
        return false;
      }
      if (!by_address.large) {
        try {
          by_address.large = (new fasttoken::BigArray<IntPlace>(most_by_address))->data();  // never freed
        } catch (const std::bad_alloc&) {
          Py_DECREF(sample);
          return false;
        }
      }
      Py_SET_REFCNT(sample, 2);  // one of them has no owner
      keep_for_ever(sample);
      for (Py_ssize_t i = from; i < to; ++i) {
        char* at = by_address.large[i].bytes;
        digit value = static_cast<digit>(i);
        std::memcpy(at, sample, int_bytes - sizeof value);
        std::memcpy(at + int_bytes - sizeof value, &value, sizeof value);
        items[i] = reinterpret_cast<PyObject*>(at);
      }
      Py_SET_REFCNT(sample, 1);
      Py_DECREF(sample);
      bool in_a_row = sizeof(PyLongObject) <= sizeof(IntPlace);
      for (Py_ssize_t i = 0; i < cached_ints; ++i)
        in_a_row &= items[i] == reinterpret_cast<PyObject*>(reinterpret_cast<IntPlace*>(items[0]) + i);
      by_address.small = reinterpret_cast<IntPlace*>(items[0]);
      if (in_a_row) by_address.end = to;
      return true;
    }
    #else
    inline PyObject* int_at(Py_ssize_t) { return nullptr; }
    inline bool is_by_address(Py_ssize_t) { return false; }
    inline bool put_ints(PyObject**, Py_ssize_t, Py_ssize_t) { return false; }
    #endif

    // known and more, up to n; a new list.
    inline PyObject* more_ints(PyObject* known, Py_ssize_t n) {
      PyObject* list = PyList_New(n);
      if (!list) return nullptr;
      PyObject** items = PySequence_Fast_ITEMS(list);
      Py_ssize_t have = PyList_GET_SIZE(known), at = 0;
      for (; at < have; ++at) {
        items[at] = PyList_GET_ITEM(known, at);
        Py_INCREF(items[at]);
      }
      for (; at < n; ++at) {
        if (at >= cached_ints && put_ints(items, at, n)) break;
        items[at] = PyLong_FromSsize_t(at);
        if (!items[at]) {
          Py_DECREF(list);
          return nullptr;
        }
        keep_for_ever(items[at]);
      }
      return list;
    }

    }  // namespace
    """
    object more_ints(object known, Py_ssize_t n)


_ints = []


cdef list ints_below(uint32_t n):
    global _ints
    cdef list known = _ints
    if len(known) < n:
        known = more_ints(known, n)
        _ints = known
    return known
