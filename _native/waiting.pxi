# Waiting requests: their ids, their tokens, and their accounts. Part of core.pyx.

cdef class Account:
    """Tokens ``served`` to one (priority, tenant), and how many of its requests wait. ``number``: its index among the
    accounts."""

    cdef readonly tuple name
    cdef readonly object priority
    cdef readonly int64_t number
    cdef public int64_t served, waiting

    def __init__(self, tuple name not None, int64_t number):
        self.name, self.priority, self.number = name, name[0], number


cdef class AccountBook:
    """Accounts by name, and for each priority where its request that was served last began (``now``) and its furthest
    account (``latest``). ``open(name)`` makes the account of a name that has none: by a subclass."""

    cdef readonly dict accounts, now, latest
    cdef readonly int64_t busy  # accounts with a waiting request

    def __cinit__(self):
        self.accounts, self.now, self.latest = {}, {}, {}

    def join(self, options, int64_t count=1) -> Account:
        """``count`` more requests of this priority and tenant wait; the other methods take their account."""
        cdef tuple name = (options.priority, options.tenant)
        cdef Account account = self.accounts.get(name)
        cdef int64_t now
        if account is None:
            account = self.open(name)
        if account.waiting == 0:
            now = self.now.get(account.priority, 0)
            account.served = max(account.served, now)
            self.busy += 1
        account.waiting += count
        return account

    cpdef leave(self, Account account, int64_t count=1):
        """``count`` of its requests wait no more."""
        account.waiting -= count
        if account.waiting == 0:
            self.busy -= 1
            if self.busy == 0:
                self.now.update(self.latest)

    def serve(self, Account account not None, int64_t tokens, int64_t count=1, last=None) -> None:
        """``count`` requests one after the other, of ``tokens`` together, of which the ``last`` has so many."""
        cdef int64_t began = account.served + tokens - (tokens if last is None else <int64_t>last)
        priority = account.priority
        if began > <int64_t>self.now.get(priority, 0):
            self.now[priority] = began
        account.served += tokens
        if account.served > <int64_t>self.latest.get(priority, 0):
            self.latest[priority] = account.served
        self.leave(account, count)

    def take_back(self, options, int64_t tokens) -> Account:
        """A served request is back in the queue."""
        cdef Account account = self.join(options)
        account.served -= tokens
        return account


cdef class Waiting:
    """``arrivals`` has all that wait, by order of arrival; ``groups``: of each key that requests may share a batch by,
    its number and how many wait. ``tokens`` and ``logits_rows`` are those of all together. ``unranked`` have no row in
    the policy's columns. ``columns`` are these, whose ``count`` says how many have a row. ``serve_all(requests)`` takes
    requests of one key: by a subclass."""

    cdef readonly object arrivals  # an OrderedDict
    cdef readonly dict groups
    cdef AccountBook book
    cdef public list unranked
    cdef public object columns
    cdef public int64_t tokens, logits_rows
    cdef int64_t next_group

    def __init__(self, arrivals, AccountBook accounts not None):
        self.arrivals, self.book = arrivals, accounts
        self.groups, self.unranked = {}, []

    def add_all(self, list requests not None, first, queued_at) -> None:
        """Requests that came together: they are numbered from ``first`` on and join the queue."""
        cdef Record r
        cdef Account account = None
        cdef object options = None, key = None
        cdef list group = None
        cdef object order = first
        for r in requests:
            r.order, r.queued_at = order, queued_at
            order = order + 1
        for r in requests:
            if account is None or r.options is not options:
                options = r.options
                account = self.book.join(options)
            else:
                account.waiting += 1
            r.account = account
            self.arrivals[r.order] = r
            if group is None or r.key is not key:
                key = r.key
                group = self.group(key)
            self.count(r, group)

    def join(self, Record request not None) -> None:
        """A request that has an account and is in ``arrivals`` is counted."""
        self.count(request, self.group(request.key))

    cdef int count(self, Record r, list group) except -1:
        group[1] += 1
        self.tokens += r.num_known
        self.logits_rows += r.row.logits_rows
        self.unranked.append(r)
        return 0

    cdef list group(self, key):
        cdef list group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = [self.next_group, 0]
            self.next_group += 1
        return group

    cpdef bint serve_whole(self, list requests) except -1:
        """A step takes all that wait, of one account: ``requests``, of which none has a row in the columns. False,
        and nothing done, where that is not so."""
        cdef Record r
        cdef int64_t tokens = 0
        cdef Py_ssize_t n = len(requests)
        if n == 0 or n != len(self.arrivals):
            return False
        last = (<Record?>requests[n - 1]).account
        for r in requests:
            if r.account is not last:
                return False
            tokens += r.num_known
        self.book.serve(last, tokens, n, max(1, (<Record>requests[n - 1]).num_known))
        self.arrivals.clear()
        self.groups.clear()
        self.unranked.clear()
        self.tokens = self.logits_rows = 0
        return True

    cdef bint holds(self, int64_t tokens, int64_t rows, int64_t logits_bytes, int64_t row_bytes) except -1:
        return (self.tokens <= tokens and len(self.arrivals) <= rows and len(self.groups) <= 1
                and self.logits_rows * row_bytes <= logits_bytes)

    def fits(self, int64_t tokens, int64_t rows, int64_t logits_bytes, int64_t row_bytes) -> bool:
        """Whether all requests fit one batch of so much, without counting on the cache."""
        return self.holds(tokens, rows, logits_bytes, row_bytes)

    cpdef list all_of(self, Ledger ledger, StepLimits limits):
        """All requests in order of arrival, where they fit the rest of the step and its group; else None."""
        cdef int64_t tokens = min(ledger.tokens, limits.most.group_tokens)
        if not self.holds(tokens, ledger.rows, ledger.logits_bytes, limits.most.logits_row_bytes):
            return None
        return list(self.arrivals.values())
