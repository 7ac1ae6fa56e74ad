# Python's texts and bytes as views, which last as long as the object; and numpy arrays of the core's columns;
# included by _core.pyx.

cdef const char* utf8_of(object text, Py_ssize_t* size) except NULL:
    cdef const char* data = PyUnicode_AsUTF8AndSize(text, size)
    if data == NULL:
        PyErr_Clear()
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise LoneSurrogateError(*error.args) from None
        raise MemoryError()
    return data


cdef string_view view_of(object text) except *:
    """The UTF-8 of a str (kept by it) or of bytes; the view lives as long as the object."""
    cdef Py_ssize_t size = 0
    cdef char* data = NULL
    if isinstance(text, str):
        if PyUnicode_IS_COMPACT_ASCII(text):
            return string_view(<const char*> PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text))
        return string_view(utf8_of(text, &size), size)
    if isinstance(text, bytes):
        PyBytes_AsStringAndSize(text, &data, &size)
        if not (<bytes> text).isascii():
            (<bytes> text).decode()  # raises UnicodeDecodeError if it is not UTF-8
        return string_view(data, size)
    raise TypeError(f"expected str or bytes, not {type(text).__name__}")


cdef string_view view_during(object text, CallIds& call) except *:
    """The same, while the call lives: the UTF-8 of a long str is made in less time than by it, and not kept by it.
    That of a very long one is left to it."""
    cdef string_view view
    cdef Py_ssize_t n
    if PyUnicode_CheckExact(text):
        n = PyUnicode_GET_LENGTH(text)
        if QUICK_FROM <= n < QUICK_TO and lacks_utf8(text):
            view = call.utf8(PyUnicode_DATA(text), n, PyUnicode_KIND(text))
    return view_of(text) if view.data() == NULL else view


def checked_text(text):
    """The str of a text, which the errors of view_of() come before."""
    view_of(text)
    return text if isinstance(text, str) else text.decode()


cdef string_view view_of_bytes(bytes data):
    return string_view(data, len(data))


cdef cnp.ndarray int32_array(const void* data, Py_ssize_t n):
    cdef cnp.npy_intp shape = n
    cdef cnp.ndarray out = cnp.new_array(1, &shape, cnp.NPY_INT32)
    if n:
        memcpy(cnp.PyArray_DATA(out), data, n * 4)
    return out


cdef cnp.ndarray pair_array(const vector[Align]& offsets):
    cdef cnp.npy_intp[2] shape
    shape[0] = offsets.size()
    shape[1] = 2
    cdef cnp.ndarray out = cnp.new_array(2, shape, cnp.NPY_INT32)
    if offsets.size():
        memcpy(cnp.PyArray_DATA(out), offsets.data(), offsets.size() * 8)
    return out
