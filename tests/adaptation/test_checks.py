"""Text that is refused, and how three kinds of tokenizers write what they do not know."""

import math

import pytest
import torch
from conftest import make_sentences
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dystress_text.adaptation.checks import check_directions, check_language, check_sentences, spelling
from dystress_text.errors import UserError
from dystress_text.files.places import EMBEDDED

ENGLISH = ["the cat sat on the mat and looked at the dog"] * 20
RUSSIAN, CHINESE = ["кошка сидела на коврике"], ["今天天气很好"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(ENGLISH, trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def sentence_piece(fallback):
    pieces = [("<unk>", 0.0), ("▁", -3.0), *((f"▁{word}", -1.0) for word in ENGLISH[0].split())]
    pieces += [(byte, -9.0) for byte in BYTES] if fallback else []
    tokenizer = Tokenizer(models.Unigram(pieces, 0, fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def word_piece():
    return AutoTokenizer.from_pretrained(EMBEDDED / "bert-mini-wiki")


@pytest.mark.parametrize(
    ("make", "text", "kind"),
    [
        (byte_level, RUSSIAN, "in_bytes"),
        (byte_level, CHINESE, "in_bytes"),
        (lambda: sentence_piece(True), RUSSIAN, "in_bytes"),
        (lambda: sentence_piece(True), CHINESE, "in_bytes"),
        (lambda: sentence_piece(False), RUSSIAN, "unknown"),
        (word_piece, RUSSIAN, "alone"),
        (word_piece, ["ქართული ენა ლამაზია"], None),
    ],
)
def test_an_unknown_language_is_refused(make, text, kind):
    tokenizer = make()
    check_language(ENGLISH, tokenizer)
    assert sum(vars(spelling(ENGLISH, tokenizer)).values()) - spelling(ENGLISH, tokenizer).letters < 0.1
    found = spelling(text, tokenizer)
    assert found.letters == sum(letter.isalpha() for letter in text[0])
    if kind is not None:
        assert getattr(found, kind) > 0.9
    with pytest.raises(UserError, match="does not know the language") as error:
        check_language(text, tokenizer)
    assert "\n" not in str(error.value)


def test_letters_are_counted_one_by_one():
    found = spelling(["the кот, 7 a"], byte_level())
    assert (found.letters, found.in_bytes * 7, found.unknown, found.alone) == (7, pytest.approx(3), 0, 0)
    with pytest.raises(UserError, match="no letters"):
        check_language(["1 2 3"], byte_level())


def test_few_or_equal_sentences_are_refused():
    check_sentences(make_sentences(500))
    with pytest.raises(UserError, match="at least 500 sentences are needed, got 499"):
        check_sentences(make_sentences(499))
    some = make_sentences(499)
    with pytest.raises(UserError, match="of 998 sentences only 499 are distinct"):
        check_sentences([*some, *(f"{sentence.upper()}!" for sentence in some)])


@pytest.mark.parametrize(("angle", "refused"), [(0.9e-3, True), (1.1e-3, False)])
def test_vectors_within_a_tiny_angle_are_refused(angle, refused):
    turns = torch.linspace(0, 2 * math.pi, 9, dtype=torch.float64)[:-1]
    cone = torch.stack([turns.cos() * math.tan(angle), turns.sin() * math.tan(angle), torch.ones(8)], dim=1) * 7
    if refused:
        with pytest.raises(UserError, match="nearly the same vector"):
            check_directions(cone)
    else:
        check_directions(cone)
    check_directions(torch.randn(20, 4))
