# The batch of a step of OneShot rows. Part of core.pyx.


@cython.final
cdef class Packer:
    """Plan to batch, in one call. ``slices``, ``batch`` and ``packed`` make the prompt slices, the batch and the result
    of their fields. ``nothing`` is the readout of a request that reads none. ``with_states(slices, rows, chunks,
    block_size)`` adds the states of a recurrent model. ``mixed(plan, block_size, recurrent)`` packs every plan that has
    rows of Decode requests."""

    cdef Maker slices, batch, packed
    cdef object nothing, with_states, mixed

    def __cinit__(self, *, Maker slices not None, Maker batch not None, Maker packed not None, nothing, with_states,
                  mixed):
        self.slices, self.batch, self.packed = slices, batch, packed
        self.nothing, self.with_states, self.mixed = nothing, with_states, mixed

    def __call__(self, plan, int32_t block_size, cbool recurrent=False):
        """``recurrent``: the batch has the state indices of its requests."""
        cdef list readouts
        rows = plan.oneshot
        if not rows or plan.prefill or plan.decode:
            return self.mixed(plan, block_size, recurrent)
        arrays, _, tokens, ends, computed, states = _pack_rows(rows, plan.folds, (), block_size, recurrent)
        slices = self.slices.make((*arrays, None, None))
        if recurrent:
            slices = self.with_states(slices, states, [], block_size)
        readouts = readouts_of(rows, self.nothing)  # of one key: they are joined to one
        joined, row_ends, pair_ends = readouts[0].join(readouts, tokens, ends)
        batch = self.batch.make((slices, joined))
        return self.packed.make((batch, (), (), _FIRST_OUTPUT, computed, row_ends, pair_ends))


cdef tuple _FIRST_OUTPUT = (0, 0, 0)
