"""Reading text: what is packed, what is blank, and what is a table under the name of a text."""

import bz2
import gzip
import io
import lzma

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dystress_text.errors import UserError
from dystress_text.files.text_lines import CorpusReport, cell_mark, joined_lines, read_sentences
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.texts import training_text

PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, "": bytes}
UNSEEN = st.characters(categories=["Zs", "Zl", "Zp", "Cf", "Cc"], exclude_characters="\n\0")
SEEN = st.characters(
    categories=["L", "N", "P", "S"], exclude_characters="\u115f\u1160\u2800\u3164\uffa0"
)


@pytest.mark.parametrize("name", ["a.txt", "a.TXT.GZ", "a.xz", "a.gz", "a.txt.Bz2"])
@pytest.mark.parametrize("kind", PACK)
def test_a_text_is_unpacked_by_its_content_under_any_name(tmp_path, name, kind):
    (tmp_path / name).write_bytes(PACK[kind](b"a cat\nBZh is no packing\n"))
    text = training_text(parse(["--train_file", str(tmp_path / name)]).text)
    assert list(text.sentences(CorpusReport(), None)) == ["a cat", "BZh is no packing"]


@given(
    st.lists(st.tuples(st.text(UNSEEN), st.text(SEEN, min_size=1), st.text(UNSEEN))),
    st.lists(st.text(UNSEEN), min_size=1),
)
@example(
    [("", "one", ""), ("", "two", "")],
    [
        "\u00a0",
        "\u3000\u200b\ufeff",
        "\u2060\u2800\u3164\u200d\ufe0f\u115f\uffa0\u180b\u17b4\U000e0100",
    ],
)
def test_a_line_without_a_character_that_shows_is_blank(lines, blanks):
    texts = ["".join(parts) for parts in lines]
    data = "".join("\n".join([text, *blanks, ""]) for text in texts).removeprefix("\ufeff").encode()
    report = CorpusReport()
    assert len(list(read_sentences(io.BytesIO(data), report))) == len(texts)
    assert report.empty == len(texts) * len(blanks)
    assert len(list(joined_lines(io.BytesIO(data)))) == len(texts)


TABLES = {
    "\t": ["id\ttext", *["1\tthe cat"] * 9],
    "|": ["label|text", *(f"{i % 2}|The cat, {i} years old." for i in range(20))],
    ":": [f"{i % 2}:{i if i < 2 else 'The'} film: at 12:30, a cat." for i in range(30)],
    ";": ["a;b", *["good;The film was fine, really."] * 9], "^": ["The cat ran.^the dog ran^0"] * 9, "~": ["x~y"] * 9,
    ",": ["id,text", *["7,A cat, and a dog"] * 20, *(f'{i},"Well, he said, ""no""."' for i in range(20))],
    "{": ['{"text": "a|b", "n": 1}', '{ "text": "c" }'], "__label__": ["__label__1 The cat, a dog and I ran."] * 9,
    **{mark: [f"{i}{mark}The cat, a dog and I ran." for i in range(9)] for mark in ("\x01", "\x1f", "\xa6")},
}  # fmt: skip
TEXTS = [
    ["Well, at 12:30 the cat, a dog and I ran; it was 1,000 m.", "He said: no.", '"Yes," he said.', "No; never."] * 9,
    ["- one: two", "* three, four", "1. five", "2) six:", "+ seven;"] * 3, ["However, it ran.", "But, it sat."] * 9,
    ["Customer: where is it?", "Clerk: in the shop."] * 9, ["12:30 The bell", "3:16 For so it was"] * 9,
    ["वह घर गया |", "राम घर गया |"] * 9, ["今天天气很好,我们去。", "你好。", "他说:好,再见,朋友。"] * 9,
    ["see http://a.b"] * 9,
    ["That is fun :D", "So nice :P"] * 9, [":smile: hello there"] * 9, ["~Ann", "It is nice~ so nice"] * 9,
    ["about ~10 of them"] * 9, ["\tIt ran", "\tIt sat"] * 9, ["It ran\t"] * 9,
    ["He asked, 'why?'", 'She said, "so."', "Fine :)"] * 9, ["one\ttab", "none"] * 9, ["a|b", "c"] * 9, [],
]  # fmt: skip


@pytest.mark.parametrize("mark", TABLES)
def test_a_table_that_is_called_a_text_is_refused_with_the_way_on(tmp_path, mark):
    file = tmp_path / "pairs.txt"
    file.write_text("\r\n\n".join(TABLES[mark]))
    named = {"\t": "name it .tsv", ",": "name it .csv", "{": "name it .jsonl"}.get(
        mark, "put tabs there and name it"
    )
    with pytest.raises(
        UserError, match=r"train_file: .*pairs.txt' is a table, with [^\n]*\Z"
    ) as caught:
        training_text(parse(["--train_file", str(file)]).text)
    assert f"{mark!r} in each line: {named}" in str(caught.value)


@pytest.mark.parametrize(("lines", "mark"), [
    ([f"{i}, The cat ran" for i in range(9)], ","), ([f"{i} : The cat, a dog" for i in range(9)], ":"),
    (['[{"text": "a"}, {"text": "b"}]'], "{"), (["[", " {", '  "text": "a"', " }", "]"], "{"),
    (["{", ' "text": "a"', "}"], "{"),
])  # fmt: skip
def test_cells_after_a_number_and_rows_of_several_lines_are_a_table(lines, mark):
    assert cell_mark(io.BytesIO("\n".join(lines).encode())) == mark


def test_lines_that_look_like_rows_are_sentences_by_the_way_that_the_refusal_names(tmp_path):
    lines = [f"{who}:Where is my cat?" for who in ("Tom", "Ann")] * 9
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with pytest.raises(
        UserError, match="if its lines are sentences, put the line 'text' before them"
    ):
        training_text(parse(["--train_file", str(tmp_path / "a.txt")]).text)
    (tmp_path / "a.tsv").write_text("\n".join(["text", *lines]))
    text = training_text(parse(["--train_file", str(tmp_path / "a.tsv")]).text)
    assert list(text.sentences(CorpusReport(), None)) == lines


@pytest.mark.parametrize("lines", TEXTS)
def test_prose_with_commas_colons_and_lists_is_a_text(lines):
    assert cell_mark(io.BytesIO("\n".join(lines).encode())) == ""
