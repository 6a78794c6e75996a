"""Words of texts: stems against snowballstemmer, stop words against bm25s, languages by examples."""

# ruff: noqa: RUF001 - letters of other languages

import re

import pytest
import snowballstemmer
from bm25s import stopwords

from dystress_text.errors import ParameterError
from dystress_text.io.words import LANGUAGES, WordReader, language_of, reader_for

# a sentence or two of each language with stop words
EXAMPLES = {
    "danish": "Det er en bog, som jeg ikke har læst, og den ligger på bordet ved siden af mig",
    "dutch": "Het is een boek dat ik niet heb gelezen en het ligt op de tafel naast mij",
    "english": "This is a book that I have not read, and it is on the table at my side",
    "french": "C'est un livre que je n'ai pas lu et qui est sur la table à côté de moi",
    "german": "Das ist ein Buch, das ich nicht gelesen habe, und es liegt auf dem Tisch neben mir",
    "italian": "È un libro che non ho letto e che si trova sul tavolo accanto a me",
    "norwegian": "Det er en bok som jeg ikke har lest, og den ligger på bordet ved siden av meg",
    "portuguese": "É um livro que eu não li e que está na mesa ao meu lado com os outros",
    "russian": "Это книга, которую я не читал, и она лежит на столе рядом со мной",
    "spanish": "Es un libro que no he leído y que está en la mesa a mi lado con los otros",
    "swedish": "Det är en bok som jag inte har läst, och den ligger på bordet bredvid mig",
    "turkish": "Bu benim daha okumadığım bir kitap ve masanın üzerinde benim için duruyor",
}


def test_tokens_equal_snowball_stems_without_stop_words():
    lists = {"english": stopwords.STOPWORDS_EN, "german": stopwords.STOPWORDS_GERMAN}
    for language, stop_words in lists.items():
        stemmer = snowballstemmer.stemmer(language)
        text = EXAMPLES[language] + " running_houses 2019 Häuser"
        expected = []
        for word in re.findall(r"[^\W_]{2,}", text.lower()):
            if word not in stop_words:
                expected.append(stemmer.stemWord(word))
        assert WordReader(language).tokens(text) == expected


def test_every_language_stems():
    assert {*LANGUAGES} == {*snowballstemmer.algorithms()} - {"porter", "dutch_porter"}
    for language in LANGUAGES:
        stem = snowballstemmer.stemmer(language).stemWord("organisationer")
        assert WordReader(language).tokens("Organisationer") == [stem]
    for language in ("klingon", "English", "porter", ""):
        with pytest.raises(ParameterError) as error:
            WordReader(language)
        assert error.value.parameter == "language"
        assert "\n" not in str(error.value)


def test_the_reader_for_a_language_or_for_texts():
    assert reader_for("finnish", [EXAMPLES["german"]]) == WordReader("finnish")
    assert reader_for("none", [EXAMPLES["german"]]) == WordReader(None)
    # of 3,500 texts every fourth is read
    texts = [EXAMPLES["french"]] * 3500
    texts[4::4] = [EXAMPLES["german"]] * 874
    assert reader_for(None, texts) == WordReader("german")


def test_names_and_titles_of_readers():
    assert (WordReader(None).name, WordReader("english").name) == ("none", "english")
    assert WordReader(None).title == "words and first letters"
    assert WordReader("english").title == "English stems"
    assert WordReader("english", keep_stop_words=True).title == "English stems, stop words kept"


def test_a_language_without_stop_words_keeps_all_words():
    assert WordReader("finnish").words("se on kirja") == ["se", "on", "kirja"]


def test_without_a_language_words_and_their_first_letters_count():
    tokens = WordReader(None).tokens("the retrieval of house 1234567")
    assert tokens == ["the", "retrieval", "retri", "of", "house", "1234567"]


def test_vowel_signs_and_accents_are_part_of_a_word():
    assert WordReader("hindi").words("हिन्दी किताब") == ["हिन्दी", "किताब"]
    assert WordReader("french").words("cafe\u0301s") == ["cafés"]  # accents of their own


def test_scripts_without_spaces_are_bigrams():
    reader = WordReader("english")
    assert reader.tokens("天気が cats 猫") == ["cat", "天気", "気が", "猫"]
    assert reader.words("天気が cats กิน") == ["cats"]
    assert reader.tokens("กิน") == ["กิ", "ิน"]


@pytest.mark.parametrize("language", EXAMPLES)
def test_the_language_whose_stop_words_a_text_uses_most(language):
    assert language_of([EXAMPLES[language]]) == language
    other = "english" if language != "english" else "german"
    assert language_of([EXAMPLES[language]] * 3 + [EXAMPLES[other]]) == language


FINNISH = "Tämä on kirja, jota en ole lukenut, ja se on pöydällä vieressäni. Talossa on myös muita"
POLISH = "To jest książka, której nie czytałem, i leży na stole obok mnie. W domu są też inne"


def test_no_language():
    for text in (FINNISH, POLISH):  # without stop words in bm25s
        assert language_of([text] * 100) is None
    assert language_of([]) is None
    assert language_of(["2019 1234 55", "☃", "天気がとても良い"]) is None
    assert language_of(["zebra giraffe elephant the " + "lion " * 20]) is None
