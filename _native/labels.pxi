# The numbers of a question's labels, from the logprobs of the edges of its label trie. Part of core.pyx.

cdef object _fsum = _math.fsum


@cython.final
cdef class LabelPaths:
    """The path of each label through a trie of ``num_edges`` edges, and which labels extend no other label."""

    cdef vector[int32_t] edges  # of all paths, one after another
    cdef vector[int32_t] ends  # where in ``edges`` each path ends
    cdef vector[int32_t] counted
    cdef Py_ssize_t num_edges

    def __cinit__(self, paths, counted, Py_ssize_t num_edges):
        cdef Py_ssize_t edge, label
        cdef vector[int32_t] edges, ends, disjoint
        for path in paths:
            for edge in path:
                if not 0 <= edge < num_edges:
                    raise ValueError(f"edge {edge} of a trie that has {num_edges}")
                edges.push_back(<int32_t>edge)
            if edges.size() == (0 if ends.empty() else <size_t>ends.back()):
                raise ValueError("a label without a token")
            ends.push_back(<int32_t>edges.size())
        for label in counted:
            if not 0 <= label < <Py_ssize_t>ends.size():
                raise ValueError(f"label {label} of {ends.size()}")
            disjoint.push_back(<int32_t>label)
        if ends.empty():
            raise ValueError("no label")
        self.edges, self.ends, self.counted, self.num_edges = edges, ends, disjoint, num_edges

    cdef int sum_paths(self, list logprobs, Py_ssize_t first, vector[double]& out) except -1:
        """The joint logprob of each label: the sum over its path, in its order."""
        cdef Py_ssize_t i
        cdef int32_t at = 0, end
        cdef double total
        if first < 0 or first + self.num_edges > len(logprobs):
            raise IndexError(f"{len(logprobs)} logprobs; the trie reads {self.num_edges} from {first} on")
        for i in range(<Py_ssize_t>self.ends.size()):
            end = self.ends[i]
            total = logprobs[first + self.edges[at]]
            at += 1
            while at < end:
                total += <double>logprobs[first + self.edges[at]]
                at += 1
            out.push_back(total)
        return 0

    def weigh(self, tuple labels not None, list logprobs not None, Py_ssize_t first, Py_ssize_t alone=-1,
              cbool by_length=False, cbool relative=False):
        """``logprobs[first:]`` are those of the edges. ``alone``: where those without the state begin, -1 for none;
        they are subtracted. ``by_length``: joint logprobs are compared after a division by the label's tokens.
        ``relative``: the logprobs given back are those of the probabilities, and the mass is NaN.

        Returns (the best label's index, probabilities by label in order, {label: probability}, {label: logprob},
        mass). The first label wins a tie."""
        cdef Py_ssize_t i, n = self.ends.size(), index = 0
        cdef vector[double] joint, other
        cdef double best = -INFINITY, score, total, mass, level
        cdef list shares = [], disjoint
        cdef dict probabilities = {}, found = {}
        if len(labels) != n:
            raise ValueError(f"{len(labels)} names for {n} labels")
        self.sum_paths(logprobs, first, joint)
        if alone >= 0:
            self.sum_paths(logprobs, alone, other)
        else:
            other = joint
        for i in range(n):  # from here on ``other`` are the scores
            score = joint[i] - other[i] if alone >= 0 else joint[i]
            if by_length:
                score = score / (self.ends[i] - (self.ends[i - 1] if i else 0))
            other[i] = score
            if score > best:
                best, index = score, i
        for i in range(n):
            shares.append(exp(other[i] - best))
        total = _fsum(shares)
        for i in range(n):
            shares[i] = <double>shares[i] / total
            probabilities[labels[i]] = shares[i]
        if relative:
            level, mass = log(total), NAN
            for i in range(n):
                found[labels[i]] = other[i] - best - level
        else:
            for i in range(n):
                found[labels[i]] = joint[i]
            disjoint = [exp(joint[label]) for label in self.counted]
            mass = _fsum(disjoint)
            mass = 1.0 if mass > 1.0 else mass
        return index, shares, probabilities, found, mass
