# The shared part of decisions with equal questions: their key, and the reader that makes answers of their numbers.
# Part of core.pyx.

cdef inline bint _all_strings(object items, bint or_none) noexcept:
    """Whether all items of a list or tuple are of type str, or None where ``or_none``."""
    cdef Py_ssize_t i
    cdef PyObject** p = PySequence_Fast_ITEMS(items)
    for i in range(PySequence_Fast_GET_SIZE(items)):
        if type(<object>p[i]) is not str and not (or_none and <object>p[i] is None):
            return False
    return True


@cython.final
cdef class QuestionKeys:
    """Keys that are equal for tasks that ask the same. ``Choice``, ``Noul`` and ``Score`` are the classes of
    questions; ``mappings``: those of mappings that hold their own items; ``template``: the class of templates."""

    cdef type choice, noul, score, template
    cdef tuple mappings

    def __cinit__(self, type choice not None, type noul not None, type score not None, tuple mappings not None,
                  type template not None):
        self.choice, self.noul, self.score = choice, noul, score
        self.mappings, self.template = mappings, template

    cpdef of(self, task, questions):
        """Of a decision that asks ``questions``. None where a value is of a type that is equal to others (``True``
        and 1, a string of an enumeration) or may change."""
        cdef list parts = []
        cdef object part, mass = task.mass, norm = task.length_norm, cut = task.truncation
        cdef object template = task.template, orders = task.orders
        if type(questions) is not tuple and type(questions) is not list:
            return None
        if type(mass) is not bool or type(norm) is not str or type(cut) is not str:
            return None
        if template is not None and type(template) is not self.template:
            return None
        if type(orders) is not str and type(orders) is not int and type(orders) is not range:
            return None
        for question in questions:
            part = self.key(question)
            if part is None:
                return None
            parts.append(part)
        return tuple(parts), template, norm, mass, cut, orders

    cdef object key(self, question):
        """Of a question of plain strings; None of any other."""
        cdef type kind = type(question)
        if kind is self.choice:
            return self.choice_key(question.question, question.labels)
        if kind is self.noul:
            return self.noul_key(question.question, question.criteria)
        return self.score_key(question.question, question.levels) if kind is self.score else None

    cdef object choice_key(self, text, labels):
        cdef tuple names, notes
        if text is not None and type(text) is not str:
            return None
        if type(labels) is list or type(labels) is tuple:
            names = tuple(labels)
            return (text, names) if names and _all_strings(names, False) else None
        if type(labels) not in self.mappings:
            return None
        names, notes = tuple(labels), tuple(labels.values())
        return (text, names, notes) if names and _all_strings(names, False) and _all_strings(notes, True) else None

    cdef object noul_key(self, text, sides):
        cdef tuple notes
        if text is not None and type(text) is not str:
            return None
        if sides is None:
            return text
        if type(sides) not in self.mappings:
            return None
        notes = tuple(sides.values())
        for side in sides:
            if side != "true" and side != "false":
                return None
        return ("noul", text, sides.get("true"), sides.get("false")) if _all_strings(notes, True) else None

    cdef object score_key(self, text, levels):
        cdef tuple shown
        if text is not None and type(text) is not str:
            return None
        if type(levels) is int:
            return text, levels
        if type(levels) is not list and type(levels) is not tuple:
            return None
        shown = tuple(levels)
        return ("score", text, shown) if shown and _all_strings(shown, False) else None


@cython.final
cdef class AnswerReader:
    """Makes the answers of decisions that ask the same, from the outcome of each.

    ``answer`` makes one answer. ``answers`` is the class of all of them: a tuple with the attributes ``stats`` and
    ``names``. A question is a tuple

        (paths, labels, edges, kind, first level, weigh, asked)

    whose numbers are those of its ``edges`` of the trie behind it. ``weigh(logprobs, first, alone, by_length,
    relative)`` gives the labels and the numbers of ``paths.weighed`` for a question whose options are shown in another
    order than the caller's; else it is None. ``asked`` stands in each of its answers.
    ``low_mass(asked, mass)`` is called for each answer with a mass below ``least_mass``.
    ``unconditional``: the second half of the numbers is without the state."""

    cdef Maker answer
    cdef type answers
    cdef object names
    cdef tuple questions
    cdef bint unconditional, by_length, relative
    cdef double least_mass
    cdef object low_mass

    def __cinit__(self, Maker answer not None, type answers not None, tuple questions not None, names, *,
                  cbool unconditional, cbool by_length, cbool relative, double least_mass, low_mass):
        for question in questions:
            if not isinstance(question[0], LabelPaths):
                raise TypeError("a question without the paths of its labels")
        if not issubclass(answers, tuple):
            raise TypeError(f"{answers.__name__} is not a class of tuples")
        self.answer, self.answers, self.questions, self.names = answer, answers, questions, names
        self.unconditional, self.by_length, self.relative = unconditional, by_length, relative
        self.least_mass, self.low_mass = least_mass, low_mass

    cpdef AnswerReader named(self, tuple names):
        """The same reader for questions of these names."""
        cdef AnswerReader reader = AnswerReader.__new__(
            AnswerReader, self.answer, self.answers, (), names, unconditional=self.unconditional,
            by_length=self.by_length, relative=self.relative, least_mass=self.least_mass, low_mass=self.low_mass)
        reader.questions = self.questions
        return reader

    def __call__(self, Outcome outcome not None):
        cdef list logprobs = outcome.pairs(), found = []
        cdef Py_ssize_t at = 0, alone = len(logprobs) // 2 if self.unconditional else -1
        cdef object weigh, labels, asked
        cdef tuple weighed
        for question in self.questions:
            paths, labels, edges, kind, first, weigh, asked = question
            if weigh is None:
                weighed = (<LabelPaths>paths).weighed(labels, logprobs, at, alone, self.by_length, self.relative)
            else:
                labels, weighed = weigh(logprobs, at, alone, self.by_length, self.relative)
            found.append(self.one(labels, kind, first, weighed, asked))
            at += edges
            alone += edges if alone >= 0 else 0
        cdef object made = tuple.__new__(self.answers, found)
        made.stats, made.names = outcome.stats, self.names
        return made

    cdef object one(self, tuple labels, str kind, int64_t first, tuple weighed, asked):
        """One answer, from the numbers of ``LabelPaths.weigh``, in the order of ``labels``."""
        cdef Py_ssize_t i, index = weighed[0]
        cdef list shares = weighed[1]
        cdef object probabilities = weighed[2], logprobs = weighed[3], mass = weighed[4], expected = None
        if mass < self.least_mass:
            self.low_mass(asked, mass)
        if kind == "score":
            expected = _fsum([(first + i) * <double>shares[i] for i in range(len(shares))])
        return self.answer.make((labels[index], index, labels, probabilities, logprobs, mass,
                                 shares[0 if kind == "noul" else index], expected, kind, asked))


cpdef list plain_texts(list tasks, str before, str after, bint strips, Py_ssize_t most,
                       Py_ssize_t most_messages):
    """The text that the state of each task is encoded as, between ``before`` and ``after``; without white space at
    its beginning where ``strips``. None where a state is neither a text in ASCII of 1 to ``most`` characters, nor up
    to ``most_messages`` messages of such texts: these need no check, with any ``truncation``."""
    cdef list out = []
    cdef object state
    for task in tasks:
        state = task.state
        if type(state) is list or type(state) is tuple:
            state = _transcript(state, most, most_messages)
        elif type(state) is not str or not PyUnicode_IS_ASCII(state) or len(<str>state) > most:
            return None
        if state is not None and strips:
            state = state.lstrip()
        if not state:
            return None
        out.append(f"{before}{state}{after}" if before or after else state)
    return out


cdef Py_ssize_t _MOST_ROLE = 64  # characters


cdef str _transcript(messages, Py_ssize_t most, Py_ssize_t most_messages):
    """Messages written out as "role: content" paragraphs. None where there is none or more than ``most_messages``,
    one is not a dict of a role and a content in ASCII alone, or the contents have more than ``most`` characters."""
    cdef list parts = []
    cdef object role, content
    if len(messages) > most_messages:
        return None
    for message in messages:
        if type(message) is not dict or len(<dict>message) != 2:
            return None
        role, content = (<dict>message).get("role"), (<dict>message).get("content")
        if type(role) is not str or type(content) is not str:
            return None
        if not PyUnicode_IS_ASCII(role) or not PyUnicode_IS_ASCII(content) or len(<str>role) > _MOST_ROLE:
            return None
        most -= len(<str>content)
        if most < 0:
            return None
        parts.append(f"{role}: {content}")
    return "\n\n".join(parts) if parts else None


cpdef tuple names_of(questions):
    """The names of a mapping of questions; a name that is not a string of 1 or more characters is a ``ValueError``
    with the name. Strings of a subclass are copied as plain strings."""
    cdef list names = []
    for name in questions:
        if not isinstance(name, str) or not name:
            raise ValueError(name)
        names.append(name if type(name) is str else str.__str__(name))
    return tuple(names)


cdef int64_t _INT32_MAX = 2147483647  # no id that the tokenizer made is above


@cython.final
cdef class DecisionPreparer:
    """Prepares decisions that differ in their state alone, in one call. ``context`` is the engine's admission context,
    ``keys`` finds their shared parts in its ``kept``. The other arguments are called where the shared parts are
    not known, or a state is not plain text of a fitting length:

        scope(task)                               the task's use of the tokenizer
        named(questions)                          (questions, their names) of a mapping
        salt(task)                                the number of its salt; 0 without one
        decision(scope, task, questions)          the shared parts
        mould(decision, task)                     (their mould or None, the reader of their answers)
        contents(tasks, frame)                    (states and how much was cut of each, the texts among them)
        one_by_one(tasks, decision, names, contents, encoded, ms)    each with its own error
    """

    cdef QuestionKeys keys
    cdef object context, scope, named, salt, decision, mould, contents, one_by_one
    cdef Py_ssize_t most_messages

    def __cinit__(self, context, QuestionKeys keys not None, *, Py_ssize_t most_messages, scope, named, salt, decision,
                  mould, contents, one_by_one):
        self.context, self.keys, self.most_messages = context, keys, most_messages
        self.scope, self.named, self.salt, self.decision, self.mould = scope, named, salt, decision, mould
        self.contents, self.one_by_one = contents, one_by_one

    def __call__(self, list tasks not None) -> list:
        """The error of one state stands in its place; an error of all tasks is raised."""
        cdef object context = self.context, encoder = context.encoder, task = tasks[0], names = None, contents = None
        cdef object key = None, decision = None, known = None, frame, mould, answers
        cdef list texts, ids = [], made
        cdef bint whole = False
        cdef double ms = 0.0
        reader, alone, _ = scope_of(task, context.config.default_cache)
        questions = task.questions
        if type(questions) is not tuple and type(questions) is not list:
            questions, names = self.named_questions(questions)
        if not alone:
            key = self.keys.of(task, questions)
        if key is not None:
            decision = (<Memo?>context.kept).get_for(key, reader)
        if decision is None:
            scope = self.scope(task)
            try:
                decision = self.decision(scope, task, questions)
            finally:
                ms = scope.close()
        frame, mode = decision.frame, task.cache
        if type(mode) is str:
            known = decision.moulds.get(mode)
        if known is None:
            known = self.mould(decision, task)
        mould, answers = known
        salt = 0 if task.salt is None else self.salt(task)
        texts = plain_texts(tasks, frame.before, frame.after, frame.strips, context.max_chars,
                            min(<Py_ssize_t>context.max_length, self.most_messages))
        if texts is None:
            contents, texts = self.contents(tasks, frame)
        if texts:
            ids, spent = self.encode(encoder, task, texts)
            ms = (ms + <double>spent) / len(ids)
        if mould is None:
            made = [None] * len(ids)
        else:
            made, whole = (<PromptMould?>mould).make(
                ids, _INT32_MAX, ms, salt, answers if names is None else (<AnswerReader?>answers).named(names))
        if whole and len(made) == len(tasks):
            return made
        if contents is None:
            contents, _ = self.contents(tasks, frame)
        return self.one_by_one(tasks, decision, names, contents, iter(zip(ids, made)), ms)

    cdef tuple named_questions(self, questions):
        """(the questions of a mapping, their names)."""
        if type(questions) is dict:
            try:
                return tuple((<dict>questions).values()), names_of(questions)
            except ValueError:
                pass  # `named` raises the error
        return self.named(questions)

    cdef tuple encode(self, encoder, task, list texts):
        """(ids of each text, or its error; milliseconds)."""
        cdef double began
        cdef object found
        if not encoder.may_pass_rows:
            began = _perf_counter()
            try:
                found = encoder.tokenizer.encode_arrays(texts, False, parse_special=False)
                (<Tally?>encoder.tally).add(len(texts))
                return found, (<double>_perf_counter() - began) * 1e3
            except (ValueError, TypeError):
                pass  # of one of them; which one is found by asking for each alone
        scope = self.scope(task)
        found = scope.encode_all(texts)
        return found, scope.close()
