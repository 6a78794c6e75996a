"""Crops of a sample: what is drawn, from which random numbers, and the batches of a text that is
cropped.
"""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dystress_text.data.corpus import load_corpus
from dystress_text.data.crops import Crops, too_short
from dystress_text.data.texts import plain_text
from dystress_text.io.text_lines import CorpusReport

WORDS = [f"w{i}" for i in range(50)]
TEXT = " ".join(WORDS)


def test_crops_are_uniform_spans():
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
    of_twenty = np.bincount(
        [s for s, n in zip(starts, lengths, strict=True) if n == 20], minlength=31
    )
    assert len(of_twenty) == 31
    assert stats.chisquare(of_twenty).pvalue > 1e-4
    assert (
        abs(stats.pearsonr(starts[::2], starts[1::2]).statistic) < 0.06
    )  # of the two crops of a sample
    assert abs(stats.pearsonr(lengths[::2], lengths[1::2]).statistic) < 0.06


def test_long_crops_are_limited_and_uniform():
    found = [
        crop.split() for step in range(4000) for crop in Crops(seed=3, most=15).views(TEXT, step, 7)
    ]
    starts = [WORDS.index(words[0]) for words in found if len(words) == 15]
    assert (max(map(len, found)), max(starts)) == (15, 35)
    assert stats.chisquare(np.bincount(starts)).pvalue > 1e-4


def test_seed_step_and_sample_determine_crops():
    crops = Crops(seed=1)
    assert crops.views(TEXT, 5, 9) == Crops(seed=1).views(TEXT, 5, 9)
    others = [Crops(seed=2).views(TEXT, 5, 9), crops.views(TEXT, 6, 9), crops.views(TEXT, 5, 10)]
    assert all(crops.views(TEXT, 5, 9) != other for other in others)


@given(
    st.text(st.sampled_from(".\u3002 \n\u3000,a1東京あア국ก中話") | st.characters()),
    st.integers(1, 40),
    st.integers(0, 3),
)
@example("「東京。」「大阪\uff01\uff1f」彼は言った。」「そう。」", 32, 0)
def test_crops_are_parts_of_the_text(text, most, step):
    views = Crops(1, 0.2, 0.6, most).views(text, step, 0)
    if too_short(text):
        assert views == [text, text]
    else:
        assert all(view and view in " ".join(text.split()) for view in views)


def test_batch_of_crops(tmp_path, tokenizer):
    lines = ["the cat sat on the mat and the dog ran to the house", "the old dog ran"]
    lines, file = [*lines, "a man and a cat ran to a river now"], tmp_path / "text.txt"
    file.write_text("\n".join([*lines, lines[0]]) + "\n")
    crops = Crops(seed=4)
    corpus = load_corpus(plain_text(file), tokenizer, 8, cache_dir=tmp_path, crops=crops)
    assert (len(corpus), corpus.report.short, corpus.report.truncated) == (4, 1, 0)
    assert "1 shorter than two crops (used whole)" in corpus.report.summary()
    for step in (0, 1):
        drawn = [crops.views(lines[i], step, i) for i in (2, 1)]
        views = [views[k] for k in (0, 1) for views in drawn]
        expected = tokenizer(views, truncation=True, max_length=8)["input_ids"]
        batch = corpus.batch(np.array([2, 1]), step)
        assert [
            ids.tolist() for ids in batch["token_ids"].split(batch["lengths"].tolist())
        ] == expected
        assert batch["longest"] == batch["lengths"].max()
    assert corpus.distinct().chosen.tolist() == [0, 1, 2]
    again = load_corpus(
        plain_text(file), tokenizer, 8, cache_dir=tmp_path, crops=Crops(seed=5)
    )  # from the cache
    assert (again.crops.seed, again.report) == (5, corpus.report)


def test_documents_end_at_blank_lines(tmp_path, tokenizer):
    file = tmp_path / "text.txt"
    file.write_text(
        "\n\none two\nthree\n \n\nfour five\r\n" + "a lot of words\n" * 5000 + "\n\nsix"
    )
    documents = list(
        plain_text(file, documents=True).sentences(report := CorpusReport(unit="document"), None)
    )
    assert (documents[0], documents[-1]) == ("one two three", "six")
    assert (
        " ".join(documents[1:-1]) == "four five" + " a lot of words" * 5000
    )  # a long one is several
    assert (len(documents), report.summary()) == (4, "4 documents")
    file.write_text(
        "one\n" + "x" * 65_536 + "\n" + "y" * 65_536 + " z\nthree\n"
    )  # a blank is the last byte read
    documents = list(
        plain_text(file, documents=True).sentences(report := CorpusReport(unit="document"), None)
    )
    assert (documents, report.over_long) == (["one", "x" * 65_536, "three"], 1)
