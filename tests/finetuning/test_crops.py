"""Crops of a sample: their distribution, what determines them, and batches of them."""

from itertools import chain

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from model_cases import text_reader
from scipy import stats

from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.crops import Crops, too_short
from dystress_text.finetuning.texts import plain_text

WORDS = [f"w{i}" for i in range(50)]
TEXT = " ".join(WORDS)


def test_crops_are_uniform_spans():
    steps = [Crops(seed=3).spans(np.array([50]), step, np.array([7])) for step in range(4000)]
    starts, lengths = np.array(steps).transpose(1, 0, 2, 3).reshape(2, 4000, 2)
    assert (lengths.min(), lengths.max()) == (10, 30)
    inner = np.bincount(lengths.ravel())[11:30]  # of 10 and 30 words there are half as many
    assert stats.chisquare(inner).pvalue > 1e-4
    of_twenty = np.bincount(starts[lengths == 20])
    assert len(of_twenty) == 31  # to the end of the sample
    assert stats.chisquare(of_twenty).pvalue > 1e-4
    for drawn in (starts, lengths):  # the two crops are independent
        assert abs(stats.pearsonr(*drawn.T).statistic) < 0.06
    firsts, counts = Crops(seed=3, most=15).spans(np.full(8000, 50), 0, np.arange(8000))
    assert counts.max() == 15
    assert stats.chisquare(np.bincount(firsts[counts == 15])).pvalue > 1e-4


def test_seed_step_and_sample_determine_crops():
    crops = Crops(seed=1)
    drawn = crops.views(TEXT, 5, 9)
    assert drawn == Crops(seed=1).views(TEXT, 5, 9)
    assert drawn not in (Crops(seed=2).views(TEXT, 5, 9), crops.views(TEXT, 6, 9))
    assert drawn != crops.views(TEXT, 5, 10)
    shares = np.random.default_rng([1, 5, 9]).random((2, 2))[:, 0]
    _, counts = crops.spans(np.array([50]), 5, np.array([9]))
    assert counts.ravel().tolist() == np.rint((0.2 + 0.4 * shares) * 50).tolist()


def test_crops_of_a_short_text_have_four_words():
    views = [Crops(seed=0).views(" ".join(WORDS[:8]), step, 0) for step in range(50)]
    assert {len(view.split()) for view in chain(*views)} == {4, 5}


@given(
    st.text(st.sampled_from(".\u3002 \n\u3000,a1東京あア国ก中話") | st.characters()),
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
    lines = [
        "the cat sat on the mat and the dog ran to the house",
        "the old dog ran",
        "a man and a cat ran to a river now",
        "the cat sat on the mat and the dog ran to the house",
    ]
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines))
    crops = Crops(seed=4)
    corpus = load_corpus(plain_text(file), text_reader(8), cache_dir=tmp_path, crops=crops)
    assert corpus.report.short == 1
    pairs = [crops.views(lines[2], 1, 2), crops.views(lines[1], 1, 1)]
    views = [first for first, _ in pairs] + [second for _, second in pairs]
    batch = corpus.batch(np.array([2, 1]), 1)
    ids = batch["token_ids"].split(batch["lengths"].tolist())
    expected = tokenizer(views, truncation=True, max_length=8)["input_ids"]
    assert [each.tolist() for each in ids] == expected
    assert batch["longest"] == batch["lengths"].max()
    assert corpus.distinct().selected.tolist() == [0, 1, 2]
    again = load_corpus(plain_text(file), text_reader(8), cache_dir=tmp_path, crops=Crops(seed=5))
    assert again.crops.seed == 5  # from the cache
    assert again.report == corpus.report
