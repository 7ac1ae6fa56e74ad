"""What can go wrong with a tokenizer, by who has to act.

``TokenizerError`` (a ``ValueError``)
├── ``TokenizerFileError``     the file is malformed: ``path`` is where in the JSON (from the native core)
├── ``BackendUnavailable``     the file needs another rung, and the package behind that rung is not installed
├── ``ChatTemplateError``      a chat template that is missing, malformed, refuses, or is past its bounds
└── ``TokenizersMutationError``  something this library leaves out on purpose (also an ``AttributeError``)

``TokenizerFileError`` and ``UnsupportedFeature`` come from the native core and are plain ``ValueError``s.
"""

from __future__ import annotations

EXTRA = 'pip install "prelude-engine[engine]"'


class TokenizerError(ValueError):
    """Base of the errors raised on purpose by the Python side."""


class BackendUnavailable(TokenizerError, ImportError):
    """The file needs a package that is not installed; the message names the feature and the extra."""

    def __init__(self, feature: str, package: str) -> None:
        super().__init__(
            f"this tokenizer file needs {feature}, which the native core does not do, and the package "
            f"`{package}` that would serve it is not installed: {EXTRA}"
        )
        self.feature = feature
        self.package = package


class ChatTemplateError(TokenizerError):
    """A chat template that is missing, malformed, refuses the messages, or went past its bounds."""


class TokenizersMutationError(TokenizerError, AttributeError):
    """A part of HF's API that is left out on purpose; the message says what to do instead."""


class TokenizerConfigWarning(UserWarning):
    """tokenizer_config.json and tokenizer.json disagree."""
