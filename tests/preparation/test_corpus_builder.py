"""The corpus builder: splitting, cleaning, counting, files of all kinds, processes, errors."""

import bz2
import gzip
import html
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dystress_text.errors import UserError
from dystress_text.preparation import corpus_reader
from dystress_text.preparation.corpus_builder import REASONS, BuildReport, CorpusBuildSettings, SeenHashes, build_corpus
from dystress_text.preparation.corpus_cleaner import MAX_CHARACTERS, clean_paragraph
from dystress_text.preparation.corpus_reader import end_of_block, kind_of, list_files
from dystress_text.preparation.sentence_splitter import split_sentences

ROOT = Path(__file__).resolve().parents[2]
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")

# "|" stands where a sentence ends
SPLITS = """
The cat sat.|The dog ran.
The cat sat!|The dog ran.
Did the cat sit?|The dog ran.
The cat sat….|The dog ran.
The cat sat...|The dog ran.
The cat sat…|The dog ran.
He waited ... and waited.
He waited... I think he left.
Well… I never knew that.
What?!|The dog ran.
The cat sat.
no mark and no capital
Mr. Smith met Mrs. Jones and Ms. Brown.
Dr. Who is a series.|It is long.
Prof. Adams taught Gen. Lee and Lt. Col. Young.
Fruit, e.g. Apples, and nuts, i.e. Almonds, are sold.
Smith v. Jones was decided; cf. Brown for more.
He lived in the U.S. Army barracks.
He moved to the U.S.|The army followed.
He moved to the U.S. in May.
She lives in Washington, D.C.|She works there.
J. R. R. Tolkien wrote it.|He was born in 1892.
It was written by J. Smith.|He was poor.
George W. Bush won.
Vitamin C.|The body needs it.
See No. 5 and Nos. 7 to 9.
He said no.|Mary left.
It is on p. 12 and pp. 30 of vol. 3.
See Fig. 2 and Eq. 4 there.
On Sept. 11 it rained; on Jan. 2 it did not.
It opened in Jan.|The park closed.
Pi is 3.14 and e is 2.72.|That is known.
It cost $1.5 million.|Nobody paid.
Version 2.0.1 is out.|Install it.
It happened in 1990.|The town grew.
It happened in 1990.|25 people came.
1. The first item is here.
12. The twelfth item is here.
He finished 3.|The rest gave up.
He said "Stop."|She did not.
He said "stop".|She did not.
He said “Stop!”|She did not.
He wrote 'No.'|She wrote back.
(He left.)|She stayed.
He left (see above).|She stayed.
He left.|(She stayed.)
He left.|"She stayed," they said.
He left.|“She stayed,” they said.
He left.|¿Quién sabe?
He left.[1]|She stayed.[2][3]|They met.
He left. (she stayed)
Acme Inc. makes things.
Acme Inc. Employees like it.
He works for Acme Inc.|The pay is good.
Bread, milk, etc. are sold.|Beer is not.
Smith et al. (2010) showed it.
Smith et al.|The result holds.
Martin Luther King Jr. spoke there.|Many listened.
He came at 5 p.m. on Monday.
He came at 5 p.m.|The train had left.
She holds a Ph.D.|Her thesis was long.
St. John is a town.|It is old.
They live on Main St.|The house is red.
Visit example.com.|The site is new.
Node.js is used.|C is not.
iPhones sold well. iPods did not.
Yahoo! is a company.
Elle est partie.|Où est-elle ?|À Paris.
Er kam.|Äpfel sind rot.|Übung macht den Meister.
Он пришёл.|Она ушла.
يذهب الولد؟|تعود البنت.
वह गया।|वह आई।
The end.The start has no space.
He left.  |Two spaces follow.
The U.N. and the E.U. met.|Nothing came of it.
Mt. Everest and Ft. Worth are far apart.
It lasted approx. 5 minutes.|Then it stopped.
H.R. 1234 passed.|The president signed it.
the "Rev. Green" case—Mr. White won it.
"""


def cases() -> list[str]:
    return [line for line in SPLITS.split("\n") if line]


@pytest.mark.parametrize("case", cases())
def test_sentences_end_where_they_should(case):
    assert split_sentences(case.replace("|", " ")) == [part.strip() for part in case.split("|")]


def words(number: int) -> str:
    """A sentence of eight words like no other."""
    return f"Sentence {number} says that cats chase {number + 1} mice."


def build(tmp_path: Path, *contents: bytes | str, name: str = "in", **options: object) -> tuple[list[str], BuildReport]:
    files = [tmp_path / f"{name}{i}" for i in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    output = tmp_path / "corpus.txt"
    report = build_corpus(files, output, CorpusBuildSettings(**{"workers": 1, "overwrite": True, **options}), False)
    return output.read_text(encoding="utf-8").split("\n")[:-1], report


def wiki(paragraphs: list[str], title: str = "A & B") -> str:
    head = f'<doc id="1" url="https://example.org/?curid=1" title="{html.escape(title)}">\n{title}\n\n'
    return head + "\n".join(paragraphs) + "\n\n</doc>\n"


def as_json(paragraphs: list[str]) -> str:
    return json.dumps({"id": "1", "url": "u", "title": "A & B", "text": "\n".join(["A & B", *paragraphs])}) + "\n"


def wrapped(paragraphs: list[str]) -> str:
    return "".join(textwrap.fill(paragraph, 60) + "\n\n" for paragraph in paragraphs)


def lines(paragraphs: list[str]) -> str:
    return "".join(f"{paragraph}\n" for paragraph in paragraphs)


KINDS = {"wiki": wiki, "json": as_json, "wrapped": wrapped, "lines": lines}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_known_sentences_come_out_exactly(tmp_path, kind, pack):
    sentences = [*(words(i) for i in range(300)), "Zoë said “naïve” — and 5 < 6 is true, isn't it?"]
    paragraphs = [" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)]
    text = KINDS[kind](paragraphs)
    assert kind_of(text.encode()) == kind
    found, report = build(tmp_path, pack(text.encode()))
    assert found == sentences
    assert (report.sentences, report.bytes_read) == (301, len(text.encode()))
    assert {reason for reason, count in report.dropped.items() if count} == (
        {"heading"} if kind in ("wiki", "json") else set()
    )


def test_crlf_and_byte_order_mark_leave_no_trace(tmp_path):
    paragraphs = [" ".join(words(4 * i + k) for k in range(4)) for i in range(20)]
    for make in KINDS.values():
        found, _ = build(tmp_path, b"\xef\xbb\xbf" + make(paragraphs).replace("\n", "\r\n").encode())
        assert found == [words(i) for i in range(80)]


def test_lines_of_text_are_told_from_wrapped_paragraphs():
    chance = random.Random(1)
    unmarked = ["word " * chance.randint(3, 15) for _ in range(50)]
    assert kind_of("\n".join(unmarked).encode()) == "lines"
    assert kind_of("\n".join(f"{line.strip()}." for line in unmarked).encode()) == "lines"
    assert kind_of(textwrap.fill(" ".join(unmarked), 72).encode()) == "wrapped"
    assert kind_of(b'{"id": 1, "title": "no such key"}\n') == "lines"


GOOD = "The quick brown fox jumps over the lazy dog."
DROPS = {
    "too_short": "Only five words are here.",
    "too_long": "word " * 80 + "end.",
    "no_letters": "1 2 3 4 5 6 7 8.",
    "few_letters": "a 1234 b 1234 c 1234 d 1234.",
    "undecodable": "The quick brown \ufffd jumps over the dog.",
    "heading": "== A heading that has quite a few words ==",
    "category": "Category:People who have never been to the moon.",
    "list_item": "* red apples, green pears and many blue plums",
    "markup": "The quick {{lang|la|vulpes}} jumps over the lazy dog.",
    "html": 'The quick <span class="x">brown fox</span> jumps over the dog.',
    "duplicate": GOOD,
}


@pytest.mark.parametrize("reason", DROPS)
def test_each_reason_is_counted_and_located(tmp_path, reason):
    found, report = build(tmp_path, f"{GOOD}\n\n{DROPS[reason]}\nAnother good one follows right after it.\n{GOOD}x\n")
    assert found == [GOOD, "Another good one follows right after it.", f"{GOOD}x"]
    assert {name: count for name, count in report.dropped.items() if count} == {reason: 1}
    assert report.first == {reason: f"{tmp_path / 'in0'}:3"}
    assert f"left out: 1 {REASONS[reason]}, the first at {tmp_path / 'in0'}:3" in report.summary()


def test_reasons_are_complete():
    assert set(DROPS) | {"not_json"} == set(REASONS)


@pytest.mark.parametrize(
    "text",
    ["# A title", "### A title", "Section::::History of the town and its people.", "=A=", "==== Notes ===="],
)
def test_headings(text):
    assert clean_paragraph(text)[1] == "heading"


@pytest.mark.parametrize(
    "text",
    ["{| class=wikitable", "|- style=x", "| a || b", "|}", "! Year", "{{Infobox", "}}", "It is [[File:a|b|c]] here."],
)
def test_markup(text):
    assert clean_paragraph(text)[1] == "markup"


@pytest.mark.parametrize("text", ["a <br> b", "a <br/> b", "a </ref> b", "a <!-- b", "a &lt;b&gt; c", "<math x='1'>"])
def test_html(text):
    assert clean_paragraph(text)[1] == "html"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AT&amp;T &quot;works&quot; &#8212; R&D &copy=2", 'AT&T "works" — R&D &copy=2'),
        ("one&amp;nbsp;two", "one\xa0two"),
        ("a\0b\x07c\u200bd\xade\ufefff", "abcdef"),
        ("* A list item.", "A list item."),
        ("BULLET::::- A list item.", "A list item."),
        (": An indented line.", "An indented line."),
        ("— A dialogue", "— A dialogue"),
        ("'''Bold''' and ''italic'' text", "Bold and italic text"),
        ("a [[link]] and [[Some page|another]]", "a link and another"),
        ("Anarchism (; , ) is; f() is not", "Anarchism is; f() is not"),
        ("2 < 3 and 5 > 4", "2 < 3 and 5 > 4"),
        ("=x and more", "=x and more"),
    ],
)
def test_cleaning(text, expected):
    assert clean_paragraph(text) == (expected, "")


def test_white_space_and_unicode_forms_are_made_one(tmp_path):
    text = "Cafe\u0301\u00a0is\t a \u2003 good  place\u2028to be.\n"
    assert build(tmp_path, text)[0] == ["Café is a good place to be."]


def test_limits_count_words(tmp_path):
    text = "".join("Word" + " word" * (n - 1) + ".\n" for n in range(1, 12))
    assert [len(line.split()) for line in build(tmp_path, text, min_words=3, max_words=9)[0]] == list(range(3, 10))
    assert build(tmp_path, "w" * MAX_CHARACTERS + f" x\n{GOOD}\n", min_words=2)[1].dropped["too_long"] == 1


def test_invalid_utf8_is_replaced_and_counted(tmp_path):
    data = f"{GOOD}\n".encode() + b"The quick \xff brown fox jumps over it. The lazy dog did not wake up then.\n"
    found, report = build(tmp_path, data)
    assert found == [GOOD, "The lazy dog did not wake up then."]
    assert (report.invalid_utf8, report.dropped["undecodable"]) == (1, 1)
    assert report.first["invalid_utf8"] == report.first["undecodable"] == f"{tmp_path / 'in0'}:2"
    assert f"not UTF-8: 1 lines, the first at {tmp_path / 'in0'}:2" in report.summary()


@pytest.mark.parametrize("line", ["{", "[1]", "null", '{"id": 1}', '{"text": 5}', "[" * 100_000, "1" * 5000])
def test_json_lines_without_a_text_are_counted(tmp_path, line):
    found, report = build(tmp_path, as_json([GOOD]) + line + "\n")
    assert found == [GOOD]
    assert (report.dropped["not_json"], report.first["not_json"]) == (1, f"{tmp_path / 'in0'}:2")


def test_lone_surrogates_in_json_are_undecodable(tmp_path):
    found, report = build(tmp_path, as_json([GOOD, GOOD.replace("fox", "\ud800")]))
    assert (found, report.dropped["undecodable"]) == ([GOOD], 1)


def test_duplicates_are_found_across_files_and_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_reader, "BLOCK_BYTES", 200)
    text = lines([words(i) for i in range(50)])
    found, report = build(tmp_path, text, lines([words(99)]) + text)
    assert found == [*(words(i) for i in range(50)), words(99)]
    assert (report.dropped["duplicate"], report.first["duplicate"]) == (50, f"{tmp_path / 'in1'}:2")


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_any_size_give_the_same_sentences_and_places(tmp_path, monkeypatch, kind):
    paragraphs = [" ".join(words(5 * i + k) for k in range(5)) for i in range(40)]
    text = "".join(KINDS[kind](paragraphs[i : i + 4]) for i in range(0, 40, 4)) + KINDS[kind]([DROPS["html"]])
    whole = build(tmp_path, text)
    assert len(whole[0]) == 200
    for size in (300, 1000, 1777):
        monkeypatch.setattr(corpus_reader, "BLOCK_BYTES", size)
        assert build(tmp_path, text) == whole


def test_workers_give_identical_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_reader, "BLOCK_BYTES", 20_000)
    chance = random.Random(3)
    texts = [wiki([" ".join(words(chance.randrange(9000)) for _ in range(4)), *DROPS.values()]) for _ in range(600)]
    one = build(tmp_path, "".join(texts), lines(texts))
    written = (tmp_path / "corpus.txt").read_bytes()
    two = build(tmp_path, "".join(texts), lines(texts), workers=2)
    assert two == one
    assert (tmp_path / "corpus.txt").read_bytes() == written
    assert len(one[0]) > 1000


def test_folders_are_walked_in_order(tmp_path):
    for number, name in enumerate(["AA/wiki_00", "AA/wiki_01", "AB/wiki_00"]):
        (tmp_path / "dump" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dump" / name).write_text(wiki([words(number)]))
    (tmp_path / "dump" / ".hidden").write_text(words(9))
    build_corpus([tmp_path / "dump"], tmp_path / "out.txt", CorpusBuildSettings(workers=1), False)
    assert (tmp_path / "out.txt").read_text() == "".join(f"{words(i)}\n" for i in range(3))


def test_the_report_is_json(tmp_path):
    _, report = build(tmp_path, f"{GOOD}\n{GOOD}\n")
    stored = json.loads(json.dumps(report.to_json()))
    assert (stored["sentences"], stored["dropped"]["duplicate"]) == (1, 1)
    assert report.summary()[0] == "1 sentences from 1 files with 0.0 MB of text"


def refused(tmp_path: Path, *files: Path, **options: object) -> str:
    """The error; it is one line, and nothing has been written."""
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(UserError) as raised:
        build_corpus(list(files), tmp_path / "out.txt", CorpusBuildSettings(**{"workers": 1, **options}), False)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_the_user_can_put_right_is_one_line(tmp_path):
    good, empty, blank, short = (tmp_path / name for name in ("good", "empty", "blank", "short"))
    for file, content in ((good, GOOD), (empty, ""), (blank, "\n \n"), (short, "Too short.")):
        file.write_text(content)
    (tmp_path / "folder").mkdir()
    cut = tmp_path / "cut.xz"
    cut.write_bytes(lzma.compress(os.urandom(50_000))[:30_000])
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(os.urandom(50_000))[:-8] + b"12345678")
    assert "No such file" in refused(tmp_path, tmp_path / "nowhere")
    assert "no file in the folder" in refused(tmp_path, tmp_path / "folder")
    assert "no text in" in refused(tmp_path, empty)
    assert "nothing but white space" in refused(tmp_path, blank)
    assert "no sentence is left: left out: 1 sentences with too few words" in refused(tmp_path, short)
    assert "cannot read" in refused(tmp_path, good, cut)
    assert "cannot read" in refused(tmp_path, good, damaged, workers=2)
    for numbers in ({"min_words": 0}, {"min_words": 9, "max_words": 8}, {"workers": 0}):
        with pytest.raises(UserError, match="--"):
            CorpusBuildSettings(**numbers)
    with pytest.raises(UserError, match="cannot write"):
        build_corpus([good], tmp_path / "nowhere" / "out.txt", CorpusBuildSettings(), False)
    with pytest.raises(UserError, match="is a folder"):
        build_corpus([good], tmp_path / "folder", CorpusBuildSettings(overwrite=True), False)
    with pytest.raises(UserError, match="is one of the inputs"):
        build_corpus([good], good, CorpusBuildSettings(overwrite=True), False)


def test_an_output_is_replaced_only_on_request(tmp_path):
    source, output = tmp_path / "in", tmp_path / "out.txt"
    source.write_text(GOOD)
    output.write_text("precious")
    assert "exists already" in refused(tmp_path, source)
    build_corpus([source], output, CorpusBuildSettings(workers=1, overwrite=True), False)
    assert output.read_text() == f"{GOOD}\n"
    source.write_text("Too short.")
    assert "no sentence" in refused(tmp_path, source, overwrite=True)  # what was there stays


def test_seen_hashes_agree_with_a_set():
    chance = random.Random(0)
    values = [chance.choice([0, 2**64 - 1, chance.getrandbits(64), chance.getrandbits(15)]) for _ in range(120_000)]
    ours, theirs = SeenHashes(), set()
    for start in range(0, len(values), 7000):
        batch = values[start : start + chance.choice([0, 1, 50, 7000])]
        expected = []
        for position, value in enumerate(batch):
            if value in theirs:
                expected.append(position)
            theirs.add(value)
        assert ours.add(np.array(batch, dtype=np.uint64)) == expected


FRAGMENTS = [
    *(b"\n", b"\n\n", b". A ", b" ", b"&#0;", b"&#13;", b"&amp;", b'<doc id="1" title="x">\n', b"</doc>\n"),
    *(b'{"text": "', b'\\ud800 a"}\n', b"\xe2\x80\xa8", b"\xcc\x81", b"[[", b"'''", GOOD.encode()),
    *(b"\x1f\x8b", b"BZh91AY&SY", b"\xfd7zXZ\x00", *(text.encode() for text in DROPS.values())),
]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(FRAGMENTS),
            st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
        ),
        max_size=30,
    ).map(b"".join)
)
@example(b"a &#10; b")
def test_any_bytes_give_clean_lines_or_one_error(data):
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "in"), Path(folder, "out")
        source.write_bytes(data)
        try:
            build_corpus([source], output, CorpusBuildSettings(min_words=2, max_words=20, workers=1), False)
        except UserError:
            assert os.listdir(folder) == ["in"]
            return
        text = output.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    found = text.split("\n")[:-1]
    assert len(found) == len(set(found)) > 0
    for line in found:
        assert 2 <= len(line.split()) <= 20
        assert line == " ".join(line.split())
        assert line == unicodedata.normalize("NFC", line)
        assert not any(unicodedata.category(char) == "Cc" for char in line)


@pytest.mark.parametrize(
    "pattern", [".", "a. ", "!!\"'", "[[", "<a", "&", "=", " (", ". (", "\u0301", "{{", ". A", "\xa0.", '"', "U.S. "]
)
def test_time_grows_with_length_alone(pattern):
    text = f"= {pattern * (300_000 // len(pattern))} x"
    start = time.process_time()
    split_sentences(clean_paragraph(text)[0])
    assert time.process_time() - start < 2


def test_long_lines_are_cut_behind_sentences_words_and_characters():
    huge = corpus_reader.MAX_LINE_BYTES
    assert end_of_block(b"a" * (huge - 1), "lines") == 0
    assert end_of_block(b"A b. C d" + b"e" * huge, "lines") == len(b"A b. ")
    assert end_of_block(b"Ab cd" + b"e" * huge, "json") == len(b"Ab ")
    assert end_of_block(b"x" + "é".encode() * (huge // 2), "wiki") in (huge - 1, huge + 1)
    assert end_of_block(b"\x80" * huge, "lines") == huge


PROGRAM = """
import re, sys
from pathlib import Path


def peak() -> int:  # kB
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])


if __name__ == "__main__":
    from dystress_text.preparation.corpus_builder import CorpusBuildSettings, build_corpus

    before = peak()  # the builder's memory is what comes on top
    try:
        build_corpus([Path(sys.argv[1])], Path(sys.argv[2]), CorpusBuildSettings(workers=int(sys.argv[3])), False)
    finally:
        print(peak() - before)
"""


def start_program(tmp_path: Path, source: Path, workers: int) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "out").mkdir()
    command = [sys.executable, str(program), str(source), str(tmp_path / "out" / "corpus.txt"), str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path
    )


@needs_proc
@pytest.mark.parametrize(("end", "megabytes"), [(". The cat ", 40), (" ", 100)])
def test_memory_is_bounded_for_a_huge_line(tmp_path, end, megabytes):
    source = tmp_path / "huge"
    with source.open("w") as file:
        for number in range(2_100 * megabytes):
            file.write(f"{number} {'somewhat longer words ' * 22}went by{end}")
    assert source.stat().st_size > megabytes * 1e6
    program = start_program(tmp_path, source, 1)
    kilobytes, _ = program.communicate(timeout=60)
    assert program.returncode == (end == " ")  # a sentence without end is too long
    assert int(kilobytes) < 150_000


def running(group: int) -> list[str]:
    """The processes of a session other than its zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@needs_proc
@pytest.mark.parametrize(("workers", "how"), [(1, signal.SIGINT), (2, signal.SIGINT), (2, signal.SIGKILL)])
def test_an_interruption_leaves_no_output_and_no_process(tmp_path, workers, how):
    source = tmp_path / "in"
    os.mkfifo(source)
    program = start_program(tmp_path, source, workers)
    with source.open("w") as pipe:  # never closed before the interruption, so the build waits for more
        pipe.write(lines([words(i) for i in range(200_000)]))
        pipe.flush()
        deadline = time.monotonic() + 30
        while len(running(program.pid)) < workers and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".writing"]
        if how == signal.SIGINT:
            os.killpg(program.pid, how)  # as a terminal does
        else:
            program.kill()
        program.wait(timeout=20)
    assert program.returncode != 0
    deadline = time.monotonic() + 10
    while running(program.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(program.pid) == []
    if how == signal.SIGINT:
        assert list((tmp_path / "out").iterdir()) == []


def test_listing_keeps_the_order_given(tmp_path):
    for name in "ba":
        (tmp_path / name).write_text(name)
    assert list_files([tmp_path / "b", tmp_path / "a", tmp_path]) == [tmp_path / name for name in "baab"]
