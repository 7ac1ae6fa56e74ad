# The int objects of ids, which all tokenizers of a process share, and never give back; included by _core.pyx.
#
# Ids are many, and so are the pages that as many objects of Python's allocator would touch for the first time. On the
# CPythons that are known they are put side by side on huge pages instead, each a copy of an int of one digit with
# another digit, so that the address of each is known from its number. References that are never given back keep each of
# them. If a count has 64 bits and does not mark objects as immortal (before CPython 3.12), these references are 2^60,
# and references that a list takes are not counted: at a billion drops a second they last for 36 years.

cdef extern from *:
    """
    #include <algorithm>
    #include <cstring>

    #include "memory/big_array.hpp"

    namespace {

    // Written with the GIL held, and only read in calls that run no other code.
    PyObject** shared_ints = nullptr;
    Py_ssize_t shared_int_count = 0;

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
    IntsByAddress by_address;  // written with the GIL held
    constexpr Py_ssize_t most_by_address = Py_ssize_t{1} << 20;  // room that costs memory as far as it is used

    inline PyObject* int_at(Py_ssize_t i) {
      return reinterpret_cast<PyObject*>((i < cached_ints ? by_address.small : by_address.large) + i);
    }
    inline Py_ssize_t by_address_end() { return by_address.end; }

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
    inline Py_ssize_t by_address_end() { return 0; }
    inline bool put_ints(PyObject**, Py_ssize_t, Py_ssize_t) { return false; }
    #endif

    // A new list of ids: shared objects for those that a vocabulary has, new ones for any other. A post-processor may
    // name ids that none has.
    inline PyObject* list_of_ids(const int32_t* ids, Py_ssize_t n) {
      PyObject* list = PyList_New(n);
      if (!list) return nullptr;
      PyObject** out = PySequence_Fast_ITEMS(list);
      for (Py_ssize_t i = 0; i < n; ++i) {
        const Py_ssize_t id = static_cast<uint32_t>(ids[i]);
        if (id < by_address_end()) {
          out[i] = take_shared(int_at(id));
        } else if (id < shared_int_count) {
          out[i] = take_shared(shared_ints[id]);
        } else if (!(out[i] = PyLong_FromLong(ids[i]))) {
          Py_DECREF(list);
          return nullptr;
        }
      }
      return list;
    }

    // Makes those below n. No collection can run here.
    inline int share_ints_below(Py_ssize_t n) {
      const Py_ssize_t have = shared_int_count;
      Py_ssize_t at = have;
      if (n <= have) return 0;
      PyObject** items = static_cast<PyObject**>(PyMem_Malloc(static_cast<size_t>(n) * sizeof *items));
      if (!items) {
        PyErr_NoMemory();
        return -1;
      }
      std::copy_n(shared_ints, have, items);
      for (; at < n; ++at) {
        if (at >= cached_ints && put_ints(items, at, n)) break;
        items[at] = PyLong_FromSsize_t(at);
        if (!items[at]) {
          while (at-- > have) Py_DECREF(items[at]);
          PyMem_Free(items);
          return -1;
        }
        keep_for_ever(items[at]);
      }
      PyMem_Free(shared_ints);
      shared_ints = items;
      shared_int_count = n;
      return 0;
    }

    }  // namespace
    """
    int share_ints_below(Py_ssize_t n) except -1
    object list_of_ids(const int32_t* ids, Py_ssize_t n)
