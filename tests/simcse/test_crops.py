"""Crops of a sample: what is drawn, from which random numbers, and the batches of a text that is cropped."""

import numpy as np
import pytest
import torch
from conftest import build_transformer
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dystress_text.core.objectives import InfoNCELoss
from dystress_text.core.temperature import ConstantTemperature
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.errors import UserError
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.corpus import load_corpus
from dystress_text.simcse.crops import Crops
from dystress_text.simcse.task import SimcseTask
from dystress_text.simcse.texts import TextFile, training_text

WORDS = [f"w{i}" for i in range(50)]
TEXT = " ".join(WORDS)


def test_a_crop_is_a_span_of_words_and_every_span_of_its_length_is_as_likely():
    starts, lengths = [], []
    for step in range(4000):
        for crop in Crops(seed=3).views(TEXT, step, 7):
            words = crop.split()
            starts.append(WORDS.index(words[0]))
            lengths.append(len(words))
            assert words == WORDS[starts[-1] : starts[-1] + lengths[-1]]
    inner = np.bincount(lengths, minlength=31)[11:30]  # of 10 and 30 words there are half as many
    assert (min(lengths), max(lengths)) == (10, 30)
    assert stats.chisquare(inner).pvalue > 1e-4
    of_twenty = np.bincount([s for s, n in zip(starts, lengths, strict=True) if n == 20], minlength=31)
    assert len(of_twenty) == 31
    assert stats.chisquare(of_twenty).pvalue > 1e-4
    assert abs(stats.pearsonr(starts[::2], starts[1::2]).statistic) < 0.06  # of the two crops of a sample
    assert abs(stats.pearsonr(lengths[::2], lengths[1::2]).statistic) < 0.06


def test_a_crop_has_no_more_words_than_the_encoder_reads_and_every_place_is_as_likely():
    found = [crop.split() for step in range(4000) for crop in Crops(seed=3, most=15).views(TEXT, step, 7)]
    starts = [WORDS.index(words[0]) for words in found if len(words) == 15]
    assert (max(map(len, found)), max(starts)) == (15, 35)
    assert stats.chisquare(np.bincount(starts)).pvalue > 1e-4


def test_seed_step_and_sample_alone_decide():
    crops = Crops(seed=1)
    assert crops.views(TEXT, 5, 9) == Crops(seed=1).views(TEXT, 5, 9)
    others = [Crops(seed=2).views(TEXT, 5, 9), crops.views(TEXT, 6, 9), crops.views(TEXT, 5, 10)]
    assert all(crops.views(TEXT, 5, 9) != other for other in others)


def test_crops_of_whole_sentences_reach_the_words_of_their_share():
    sentences = ["One two three.", "Four five!", "Six seven eight nine?", "Ten 1.5 twelve.", "Thirteen."]
    text, crops = "  ".join(sentences), Crops(0, 0.3, 0.3, 1, sentences=True)  # 4 of 13 words
    found = {view for step in range(300) for view in crops.views(text, step, 0)}
    spans = {" ".join(sentences[i:j]) for i in range(5) for j in range(i + 1, 6)}
    assert found <= spans
    least = [(i, next(j for j in range(i + 1, 6) if len(" ".join(sentences[i:j]).split()) >= 4)) for i in range(4)]
    assert found == {" ".join(sentences[i:j]) for i, j in least}


def test_a_script_without_spaces_is_cropped_between_characters():
    text = "東京は日本の首都である。 人口は約1400万人で、世界最大の都市圏を成す。大阪は西にある。"
    crops = {crop for step in range(100) for crop in Crops(0).views(text, step, 0)}
    assert all(crop in text for crop in crops)
    assert len(crops) > 100
    whole = {crop for step in range(100) for crop in Crops(0, 0.1, 0.3, sentences=True).views(text, step, 0)}
    assert whole == {"東京は日本の首都である。", "人口は約1400万人で、世界最大の都市圏を成す。", "大阪は西にある。"}


SCRIPTS = st.text(
    st.one_of(
        st.sampled_from("\u3002\uff01\uff1f.!?\u300d\u300f)\"' \n\u3000\u3001,a1"),
        st.sampled_from("東京あア국ก中話x"),
        st.characters(),
    )
)


@given(SCRIPTS, st.booleans(), st.integers(1, 4), st.integers(1, 40), st.integers(0, 3))
@example("「東京。」「大阪\uff01\uff1f」彼は言った。」「そう。」", True, 1, 32, 0)
@example("彼。」a b", True, 1, 32, 0)
def test_every_text_is_cropped_to_parts_of_it(text, sentences, least, most, step):
    crops = Crops(1, 0.2, 0.6, least, sentences, most)
    views = crops.views(text, step, 0)
    if crops.too_short(text):
        assert views == [text, text]
    else:
        assert all(view and view in " ".join(text.split()) for view in views)


@pytest.mark.parametrize(("text", "sentences", "short"), [
    ("a b c d e f g", False, True), ("a b c d e f g h", False, False), ("a b c d e f g h", True, True),
    ("a b c d. e f g h", True, False), ("ภาษาไทยง่าย", False, False), ("日本語の文である。", True, True),
])  # fmt: skip
def test_what_is_shorter_than_two_crops_is_used_whole(text, sentences, short):
    crops = Crops(0, 0.2, 0.6, 4, sentences)
    assert crops.too_short(text) is short
    assert (crops.views(text, 0, 0) == [text, text]) is short


def test_a_batch_has_the_tokens_of_the_crops(tmp_path, tokenizer):
    lines = [
        "the cat sat on the mat and the dog ran to the house",
        "the old dog ran",
        "a man and a cat ran to a river now",
    ]
    file = tmp_path / "text.txt"
    file.write_text("\n".join([*lines, lines[0]]) + "\n")
    crops = Crops(seed=4)
    corpus = load_corpus(TextFile(file), tokenizer, 8, cache_dir=tmp_path, crops=crops)
    assert (len(corpus), corpus.report.short, corpus.report.truncated) == (4, 1, 0)
    assert "1 shorter than two crops (used whole)" in corpus.report.summary()
    for step in (0, 1):
        drawn = [crops.views(lines[i], step, i) for i in (2, 1)]
        views = [views[k] for k in (0, 1) for views in drawn]
        expected = tokenizer(views, truncation=True, max_length=8)["input_ids"]
        batch = corpus.batch(np.array([2, 1]), step)
        assert [ids.tolist() for ids in batch["token_ids"].split(batch["lengths"].tolist())] == expected
        assert batch["longest"] == batch["lengths"].max()
    assert corpus.distinct().chosen.tolist() == [0, 1, 2]
    again = load_corpus(TextFile(file), tokenizer, 8, cache_dir=tmp_path, crops=Crops(seed=5))  # from the cache
    assert (again.crops.seed, again.report) == (5, corpus.report)


def test_the_views_of_the_loss_are_the_crops(tmp_path, tokenizer):
    lines = ["the cat sat on the mat and the dog ran to the house", "a man and a cat ran to a river now"]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    crops, encoder = Crops(seed=4), SentenceEncoder(build_transformer("bert"), "avg", False).eval()
    corpus = load_corpus(TextFile(tmp_path / "text.txt"), tokenizer, 8, cache_dir=tmp_path, crops=crops)
    task = SimcseTask(encoder, tokenizer, corpus, InfoNCELoss(ConstantTemperature(0.05)))
    views = task.embed(encoder, task.load(np.array([1, 0]), 3)).views
    assert len(views) == 2
    for k, found in enumerate(views):
        texts = [crops.views(lines[i], 3, i)[k] for i in (1, 0)]
        ids = tokenizer(texts, truncation=True, max_length=8, padding=True, return_tensors="pt")
        expected = encoder.forward_padded(ids["input_ids"], ids["attention_mask"])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_document_is_what_stands_between_blank_lines(tmp_path, tokenizer):
    file = tmp_path / "text.txt"
    file.write_text("\n\none two\nthree\n \n\nfour five\r\n" + "a lot of words\n" * 5000 + "\n\nsix")
    documents = list(TextFile(file, documents=True).sentences(report := CorpusReport(documents=True), None))
    assert (documents[0], documents[-1]) == ("one two three", "six")
    assert " ".join(documents[1:-1]) == "four five" + " a lot of words" * 5000  # a long one is several
    assert (len(documents), report.summary()) == (4, "4 documents")
    file.write_text("one\n" + "x" * 65_536 + "\n" + "y" * 65_536 + " z\nthree\n")  # a blank is the last byte read
    documents = list(TextFile(file, documents=True).sentences(report := CorpusReport(documents=True), None))
    assert (documents, report.over_long) == (["one", "x" * 65_536, "three"], 1)
    with pytest.raises(UserError, match="sample: a cell of a table"):
        training_text(parse(["--train_file", "x.csv", "--sample", "document"]).text)


@pytest.mark.parametrize(("options", "message"), [
    (["--crop_min", "0"], r"crop_min: must lie in \(0, 1\]"), (["--crop_max", "1.1"], r"crop_max: must lie in"),
    (["--crop_min", "0.7"], "crop_min: must not be above --crop_max"), (["--supervised"], "views: with --supervised"),
    (["--views", "dropout", "--crop_sentences"], "crop_sentences: has no effect without --views crop"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        parse(["--views", "crop", *options])


def test_text_that_cannot_be_cropped_is_refused(tmp_path, tokenizer):
    file = tmp_path / "text.txt"
    file.write_text("the cat sat\n" * 20)
    with pytest.raises(UserError, match=r"views: .*20 shorter than two crops"):
        load_corpus(TextFile(file), tokenizer, 8, cache_dir=tmp_path, crops=Crops(seed=0))
