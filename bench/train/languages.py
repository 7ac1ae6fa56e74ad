"""The languages of the default model and the names that each origin of text uses for them."""

from __future__ import annotations

from typing import NamedTuple


class Language(NamedTuple):
    name: str
    folders: tuple[str, ...]
    """Locale folders and files in translation catalogues, without regard to '-' or '_' and case."""
    faker: tuple[str, ...]
    babel: str
    script: str
    """Regular-expression class that most letters of a sentence must belong to."""


LATIN = r"\p{Latin}"
LANGUAGES = (
    Language("English", ("en",), ("en_US", "en_GB", "en_IN"), "en", LATIN),
    Language("French", ("fr", "fr_fr"), ("fr_FR", "fr_CA"), "fr", LATIN),
    Language("German", ("de",), ("de_DE", "de_AT"), "de", LATIN),
    Language("Spanish", ("es", "es_es"), ("es_ES", "es_MX"), "es", LATIN),
    Language("Italian", ("it",), ("it_IT",), "it", LATIN),
    Language("Portuguese", ("pt", "pt_br", "pt_pt"), ("pt_PT", "pt_BR"), "pt", LATIN),
    Language("Dutch", ("nl",), ("nl_NL", "nl_BE"), "nl", LATIN),
    Language("Polish", ("pl",), ("pl_PL",), "pl", LATIN),
    Language("Hungarian", ("hu",), ("hu_HU",), "hu", LATIN),
    Language("Turkish", ("tr", "tr_tr"), ("tr_TR",), "tr", LATIN),
    Language("Vietnamese", ("vi",), ("vi_VN",), "vi", LATIN),
    Language("Russian", ("ru",), ("ru_RU",), "ru", r"\p{Cyrillic}"),
    Language("Greek", ("el",), ("el_GR",), "el", r"\p{Greek}"),
    Language("Arabic", ("ar",), ("ar_SA", "ar_AE"), "ar", r"\p{Arabic}"),
    Language("Hebrew", ("he",), ("he_IL",), "he", r"\p{Hebrew}"),
    Language("Hindi", ("hi", "hi_in"), ("hi_IN",), "hi", r"\p{Devanagari}"),
    Language("Thai", ("th",), ("th_TH",), "th", r"\p{Thai}"),
    Language("Chinese", ("zh_hans", "zh_hant"), ("zh_CN", "zh_TW"), "zh", r"\p{Han}"),
    Language("Japanese", ("ja",), ("ja_JP",), "ja", r"[\p{Hiragana}\p{Katakana}\p{Han}]"),
    Language("Korean", ("ko",), ("ko_KR",), "ko", r"\p{Hangul}"),
)
NAMES = tuple(language.name for language in LANGUAGES)
