"""The errors of a tokenizer, by the party that has to act. ``UnsupportedFeature``, by which the native core hands a
file on to the next backend, is the core's own."""

from __future__ import annotations

from prelude.errors.root import PreludeError

EXTRA = 'pip install "prelude-engine[tokenizer]"'


class TokenizerError(PreludeError, ValueError):
    """Base of the errors that this package raises on purpose."""


class TokenizerFileError(TokenizerError):
    """The file is not a tokenizer file: ``path`` is the place in it (``model.vocab["x"]``), ``message`` the fault."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(path, message)
        self.path, self.message = path, message

    def __str__(self) -> str:
        return f"{self.path or 'the file'}: {self.message}"


class LoneSurrogateError(UnicodeEncodeError, TypeError):
    """A ``str`` that is not Unicode text. It is a TypeError because HF raises one."""


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
    """A part of HF's API that is left out on purpose; the message names the alternative."""


class TokenizerConfigWarning(UserWarning):
    """tokenizer_config.json and tokenizer.json disagree."""
