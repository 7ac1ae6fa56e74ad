# The C++ core as Cython sees it, and its errors as Python's; included by _core.pyx.

cdef extern from "bridge.hpp" namespace "fasttoken":
    cppclass CoreError:
        int kind
        string path
        string message
    CoreError current_error()
    int FILE "fasttoken::CoreError::file"
    int UNSUPPORTED "fasttoken::CoreError::unsupported"
    int TEXT "fasttoken::CoreError::text"
    int STREAM "fasttoken::CoreError::stream"
    int MEMORY "fasttoken::CoreError::memory"
    int TABLES "fasttoken::CoreError::tables"


from prelude.tokenizer.encoding import EncodingMethods
from prelude.tokenizer.errors import LoneSurrogateError, TokenizerError, TokenizerFileError


class UnsupportedFeature(TokenizerError):
    def __init__(self, feature, path):
        super().__init__(feature, path)
        self.feature, self.path = feature, path

    def __str__(self):
        return f"{self.path}: {self.feature} is not supported by the native core"


class TablesError(ValueError):
    pass


cdef str to_str(const string& s):
    return PyUnicode_DecodeUTF8(s.data(), s.size(), "replace")


cdef str view_str(string_view s):
    return PyUnicode_DecodeUTF8(s.data(), s.size(), "replace")


cdef int raise_core() except -1 with gil:
    cdef CoreError e = current_error()
    if e.kind == FILE:
        raise TokenizerFileError(to_str(e.path), to_str(e.message))
    if e.kind == UNSUPPORTED:
        raise UnsupportedFeature(to_str(e.message), to_str(e.path))
    if e.kind == TEXT or e.kind == STREAM:
        raise TokenizerError(to_str(e.message))
    if e.kind == MEMORY:
        raise MemoryError()
    if e.kind == TABLES:
        raise TablesError(to_str(e.message))
    raise RuntimeError(to_str(e.message))


cdef extern from "bridge.hpp" namespace "fasttoken":
    cppclass Align:
        uint32_t begin, end
    cppclass Added "fasttoken::Encoded::Added":
        uint32_t index
        string text
    cppclass Encoded:
        vector[int32_t] ids, words
        vector[Align] offsets
        vector[Added] added
    cppclass AddedToken:
        uint32_t id
        string content
        cbool single_word, lstrip, rstrip, normalized, special
    cppclass CallIds:
        const int32_t* data() const
        size_t size() const
        string_view utf8(const void*, size_t, int) except +raise_core
    cppclass Core:
        Core(string_view) except +raise_core
        Core(int, uint64_t, const char*, const char*) except +raise_core nogil
        string tables(const char*, const char*) except +raise_core
        size_t table_bytes()
        size_t cache_bytes()
        cbool encode_ids(string_view, cbool, CallIds&, cbool) except +raise_core nogil
        void last_cut(string_view, size_t&, size_t&) except +raise_core nogil
        void count(string_view, size_t, CallIds&, size_t*) except +raise_core nogil
        cbool char_spans(const int32_t*, size_t, size_t, string_view, cbool, cbool, Align*)
        cbool spans_read_text()
        void encode(string_view, cbool, cbool, cbool, Encoded&) except +raise_core nogil
        string normalize(string_view) except +raise_core nogil
        void pre_tokenize(string_view, vector[string]&, vector[Align]&) except +raise_core
        string decode(const vector[uint32_t]&, cbool) except +raise_core nogil
        string decode_tokens(vector[string]&) except +raise_core
        string token_bytes(uint32_t) except +raise_core
        cbool decodes_bytes()
        const vector[AddedToken]& added()
        const string* section(const string&)
        string_view token(uint32_t)
        string_view model_token(uint32_t)
        optional[uint32_t] id(const string&)
        size_t size(cbool)
        uint32_t id_limit()
        optional[uint32_t] unknown_id()
        cbool shows_unknown()
        const string& model_settings()
        vector[uint32_t] merges() except +raise_core
        vector[double] scores() except +raise_core
        void vocab(cbool, vector[string_view]&, vector[uint32_t]&) except +raise_core
    cppclass Stream:
        Stream(const Core*, const vector[uint32_t]&, cbool) except +raise_core
        Stream(const Stream&) except +raise_core
        cbool step_whole(uint32_t, string_view&)
        cbool step(const uint32_t*, size_t, string&) except +raise_core
        string finish() except +raise_core
    size_t characters_of(string_view)
    string content_digest(string_view, const char*)
    string file_digest(int, const char*) except +raise_core nogil
