"""Decisions that are fitted to labelled texts: heads on the vector that ``embed`` gives.

    question.py   FittedQuestion: the head and its answer for a vector
    scope.py      how far a text lies from the rows of a fit
    report.py     how well the fit did
    file.py       the file of a question
    logistic.py   the regression
    rows.py       labelled texts, checked
    fit.py        from their vectors to a FittedQuestion

``engine.fit`` makes one, and ``decide`` takes it wherever it takes a question (``prelude/admission/fitted.py``).
"""
