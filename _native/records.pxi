# A request as native code reads it: its prompt, its place in the inbox, and the blocks that it holds. Part of core.pyx.

cdef dict _CACHE_MODES = {"never": 0, "auto": 1, "always": 2}


cdef class Record:
    """The prompt of a request and the tokens that its readout reads: a base of the class of requests."""

    cdef RequestRow row
    cdef PromptEnd end  # where a waiting request's prompt left the trie when it was last matched
    cdef Parcel parcel  # in the inbox; has the request in it from post to take
    cdef object held  # the arrays that the row points into
    cdef readonly object readout, cache
    cdef readonly int64_t num_read, first  # rows of the readout, and the token that they count from
    cdef readonly int64_t queued_tokens  # counted by the inbox; below 0: none

    def __cinit__(self, *args, **keywords):
        self.queued_tokens = -1

    def bind(self, tokens, positions, starts, parents, readout, int64_t first, int64_t read, int64_t num_read,
             int64_t unread, int64_t logits_rows, uint64_t salt, str cache) -> None:
        """The prompt and its readout: ``num_read`` rows of ``readout``, which count from token ``first``;
        ``read`` is the first of these tokens, -1 for none. ``unread`` tokens of the trunk are only attended to, -1
        for a request that decodes."""
        self.readout, self.first, self.num_read = readout, first, num_read
        cdef cnp.ndarray t = _int32(tokens, "tokens"), p, s, u
        self.row.tokens, self.row.num_tokens = _data(t), _len(t)
        self.row.segments, self.row.trunk = 1, _len(t)
        self.row.positions = self.row.starts = self.row.parents = NULL
        self.held = t
        if starts is not None and len(parents) > 1:
            p, s, u = _int32(positions, "positions"), _int32(starts, "starts"), _int32(parents, "parents")
            self.held = (t, p, s, u)
            self.row.positions, self.row.starts, self.row.parents = _data(p), _data(s), _data(u)
            self.row.segments, self.row.trunk = _len(u), _data(s)[1]
        self.row.read, self.row.unread, self.row.logits_rows = read, unread, logits_rows
        self.row.salt = salt
        self.cache = cache
        self.row.cache = <CacheMode><int>_CACHE_MODES[cache]

    def match_anew(self) -> None:
        """Forget its last match with the prefix cache."""
        self.end.blocks = -1

    @property
    def prompt_tokens(self) -> int:
        """With all branches."""
        return self.row.num_tokens

    @property
    def trunk(self) -> int:
        """Tokens that are common to all branches."""
        return self.row.trunk

    @property
    def unread(self) -> int:
        return self.row.unread

    @property
    def logits_rows(self) -> int:
        return self.row.logits_rows

    @property
    def salt(self) -> int:
        return self.row.salt


cdef int _check_prompt(Record r, int64_t tokens) except -1:
    """The record has a prompt, of so many tokens or more."""
    if r.held is None:
        raise TypeError("a record without a prompt")
    if not 0 <= tokens <= r.row.num_tokens:
        raise ValueError(f"{tokens} tokens of a prompt that has {r.row.num_tokens}")
    return 0


@cython.final
@cython.freelist(256)
cdef class Lease:
    """The blocks and state entries that a request holds of a pool: ``Lease`` of include/prelude/kv_pool.hpp, which
    draws them and has their invariants."""

    cdef CLease c

    @property
    def released(self) -> bool:
        return self.c.released

    @property
    def promise(self) -> int:
        return self.c.promise

    @property
    def borrowed(self) -> int:
        return self.c.borrowed

    @property
    def on_host(self) -> int:
        return self.c.on_host

    @property
    def state_index(self) -> int:
        return self.c.state_index

    @property
    def state_from(self) -> int:
        return self.c.state_from

    @property
    def base(self) -> int:
        return self.c.base

    @property
    def kept(self) -> list:
        return [(self.c.kept[k].entry, self.c.kept[k].blocks) for k in range(self.c.num_kept)]

    @property
    def num_shared(self) -> int:
        return self.c.shared.size()

    @property
    def num_blocks(self) -> int:
        return self.c.num_blocks()

    @property
    def shared(self):
        cdef size_t n = self.c.shared.size()
        cdef cnp.ndarray out = _new_int32(n)
        if n:
            memcpy(_data(out), self.c.shared.data(), n * sizeof(int32_t))
        return out

    def table(self):
        """The block table: shared blocks, then own ones."""
        cdef cnp.ndarray out = _new_int32(self.c.num_blocks())
        self.c.table(_data(out))
        return out
