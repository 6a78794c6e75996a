"""The tables of docs/recipe.md and docs/laboratory are those of the records in docs/study."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = DOCS / "laboratory"
sys.path.append(str(ROOT / "tests" / "benchmarks"))
import laboratory  # noqa: E402  # of tests/benchmarks
import languages  # noqa: E402
import own_text  # noqa: E402
import recipe  # noqa: E402
import static_laboratory  # noqa: E402

from dystress_text import train  # noqa: E402


def plain(text):
    """Rows without the spaces of their cells; the sign of a zero is the processor's."""
    return re.sub(r" *\| *", "|", text.removeprefix("| ... ")).replace("-0.00 to", "+0.00 to")


def missing(rows, *places):
    """The rows that are not on a page of docs/laboratory or another page."""
    page = plain("".join(file.read_text() for file in places))
    return [row for row in rows if plain(row) not in page]


def test_every_row_of_the_study_is_on_its_page():
    tables = laboratory.tables()
    assert sum(map(len, tables.values())) == 36
    for title, rows in tables.items():
        assert missing(rows, PAGES / f"{title.split(':')[0]}.md") == []


def test_every_row_of_the_recipes_study_is_on_its_page():
    tables = recipe.tables()
    several = [row for title, rows in tables.items() if "one seed" not in title for row in rows]
    assert (
        missing(
            [row for row in several if "±" in row or "| 0 |" in row], PAGES / "own-text-encoder.md"
        )
        == []
    )
    assert (len(tables), len(several)) == (7, 29)


def test_every_row_of_the_static_laboratory_is_on_its_page():
    (rows,) = static_laboratory.tables().values()
    assert len(rows) == 17
    assert missing(rows, PAGES / "static-tables.md") == []


def interval(ours, theirs):
    """The mean difference, paired by seed, and its 95 % interval by SciPy."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    return np.mean(differences), low, high


def test_what_the_readme_and_the_page_say_of_the_encoder_on_unseen_sets():
    files = (ROOT / "README.md", PAGES / "own-text-encoder.md")
    readme, page = (" ".join(file.read_text().split()) for file in files)
    for name, verb in (("STS-B", " gains"), ("MRPC", " loses"), ("SST2", "")):
        of = {}
        for line in recipe.read():
            if line["text"] == "paragraphs" and name in line["figures"]:
                of.setdefault((line["arm"], line["steps"]), {})[line["seed"]] = line["figures"][
                    name
                ]
        mean, *ends = interval(
            of["crop, first-last, DCL 0.03, rate 4e-4", 400], of["simcse, first-last", 200]
        )
        assert f"{name} {mean:+.2f} ({ends[0]:+.2f} to {ends[1]:+.2f};" in page
        low, high = sorted(map(abs, ends))
        interval_said = f"{low:.1f} to {high:.1f}; five seeds" if verb else "two seeds cannot tell"
        assert f"{name}{verb} {abs(mean):.1f} ({interval_said})" in readme


def test_what_the_readme_says_of_the_small_encoder():
    page = " ".join((PAGES / "text.md").read_text().split())
    averages = [
        float(word)
        for word in page.partition("Averages by seed: default ")[2].split(";")[0].split()
    ]
    mean, low, high = interval(dict(enumerate(averages)), dict.fromkeys(range(3), 48.77))
    for text in (page, " ".join((ROOT / "README.md").read_text().split())):
        assert f"{mean:+.2f}" in text
        assert f"{low:.2f} to +{high:.2f}" in text


def test_the_order_by_halves_is_that_of_its_records():
    page = (DOCS / "evaluate.md").read_text()
    rows = [
        json.loads(line) for line in (laboratory.STUDY / "halves.jsonl").read_text().splitlines()
    ]
    for collection in ("cisi", "cacm"):
        of = [row for row in rows if row["collection"] == collection]
        found = stats.spearmanr(
            [row["found"] for row in of], [row["ndcg@10"] for row in of]
        ).statistic
        assert f"| {found:.2f} (" in page


def test_a_run_of_the_static_laboratory_is_the_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(static_laboratory, "RUNS", tmp_path / "static.jsonl")
    monkeypatch.setattr(static_laboratory, "PASSES", 2)
    words, rng = (
        ["river", "stone", "cloud", "engine", "paper", "garden", "signal", "copper"],
        np.random.default_rng(0),
    )
    texts = [" ".join(rng.choice(words, 24)) for _ in range(300)]
    folder = tmp_path / "retrieval" / "cisi"
    folder.mkdir(parents=True)
    rows = {"corpus": texts, "queries": [text[:40] for text in texts[:9]]}
    for name, of in rows.items():
        lines = [json.dumps({"_id": f"{name[0]}{i}", "text": text}) for i, text in enumerate(of)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "qrels.tsv").write_text("".join(f"q{i}\tc{i}\t1\n" for i in range(9)))
    (tmp_path / "mine.txt").write_text("\n".join(texts))
    for loss in ("dcl(cosine(0.1, 0.2))", "siglip(10, -10)"):
        static_laboratory.run({"CISI": [loss]}, [3], tmp_path)
        done = train(
            "own-text", train_file=str(tmp_path / "mine.txt"), loss=loss, seed=3, num_train_epochs=2,
            eval_retrieval=[str(folder)], output_dir=str(tmp_path / loss), held_out=0,
        )  # fmt: skip
        found = static_laboratory.read()["CISI"][loss, 3]
        assert found == pytest.approx(done.evaluation["cisi_ndcg@10"], abs=1e-3)
        assert 0 < found < 100


def test_what_is_chosen_on_one_set_is_compared_on_the_other():
    laboratory_rules, rng = static_laboratory.rules(), np.random.default_rng(0)
    every = [each for rule in laboratory_rules for each in rule.losses]
    every += [
        each
        for title in static_laboratory.OBJECTIVES
        for each in static_laboratory.constants(title)
    ]
    sets = [name for names in static_laboratory.TEXTS.values() for name in names]
    figures = {
        name: {(each, seed): rng.normal(30, 0.5) for each in every for seed in range(8)}
        for name in sets
    }
    raised = {
        "CACM": ("dcl(cosine(0.1, 0.2))", "dcl(0.15)"),
        "CISI": ("dcl(cosine(0.15, 0.3))", "dcl(0.3)"),
    }
    for name, losses in raised.items():
        for each, seed in ((each, seed) for each in losses for seed in range(8)):
            figures[name][each, seed] += 9
    difference = static_laboratory.compare(figures)["cosine, DCL"]["CISI"]
    ours, theirs = ([figures["CISI"][each, seed] for seed in range(8)] for each in raised["CACM"])
    assert difference.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert difference.mean == pytest.approx(np.mean(ours) - np.mean(theirs))
    against_its_own = static_laboratory.compare(figures, static_laboratory.of_set)["cosine, DCL"][
        "CISI"
    ]
    assert against_its_own.mean < -8
    assert against_its_own.significant
    assert (
        static_laboratory.compare(figures)["cosine, DCL"]["STS12"].n == 6
    )  # without those of the choice


def test_every_figure_of_own_text_is_on_its_page():
    rows = [*own_text.table(), *languages.table()]
    assert (len(own_text.short_table()), len(rows)) == (9, 14)
    assert missing(own_text.short_table(), DOCS / "recipe.md") == []
    assert missing(rows, PAGES / "own-text.md") == []


def test_a_difference_of_the_short_table_is_scipys():
    lines = [line for line in own_text.read() if line["text"] == "CISI"]
    of = {model: {line["seed"]: line["figures"]["CISI"] for line in lines if line["model"] == model}
          for model in ("own-text", "own-text, untrained", "TF-IDF")}  # fmt: skip
    of["TF-IDF"] = dict.fromkeys(of["own-text"], of["TF-IDF"][0])
    for baseline in ("own-text, untrained", "TF-IDF"):
        mean, low, high = interval(of["own-text"], of[baseline])
        said = own_text.difference("own-text", baseline, *own_text.RECIPE["CISI"])
        assert said == f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def test_the_records_are_small_and_the_audit_held_for_nine():
    assert sum(file.stat().st_size for file in laboratory.STUDY.iterdir()) < 500_000
    found = laboratory.outcomes()
    assert (len(found), sum(one.held for one in found)) == (11, 9)


def test_what_other_tables_take_from_the_study_is_in_its_records():
    page = plain((PAGES / "text.md").read_text())
    lines = [
        json.loads(line) for line in (laboratory.STUDY / "runs.jsonl").read_text().splitlines()
    ]
    dev = {line["name"]: line["figures"]["training"]["sts_b_dev_spearman"] for line in lines}
    default = [dev[f"sts-shifted-0.4-0.05-0.07-seed-{seed}"] for seed in range(3)]
    cells = " | ".join(f"{value:.2f}" for value in (*default, sum(default) / 3))
    assert plain(f"(the default's row above) | {cells} |") in page
    assert f"|default profile, fixed|{default[0]:.2f}|" in page
    (untrained,) = [line["untrained"] for line in lines if "untrained" in line]
    for row, pooler in (
        ("cls", "cls"),
        ("avg", "avg"),
        ("avg_first_last (the best)", "avg_first_last"),
    ):
        found = untrained[pooler]
        assert f"|untrained, {row}|{found['sts_b_dev_spearman']:.2f}|" in page
        assert f"|{found['sts_b_dev_alignment']:.3f}|{found['sts_b_dev_uniformity']:.2f}|" in page
    sets = {
        line["name"]: [*line["figures"]["senteval/sts"].values(), dev[line["name"]]]
        for line in lines
    }
    for shift, most in (("0.2-0.03-0.05", 0.07), ("0.4-0.03-0.05", 0.07), ("0.6-0.03-0.05", 0.22)):
        pairs = [
            (f"sts-shifted-{shift}-seed-{seed}", f"sts-constant-0.05-seed-{seed}")
            for seed in range(5)
        ]
        away = max(
            abs(a - b)
            for ours, theirs in pairs
            for a, b in zip(sets[ours], sets[theirs], strict=True)
        )
        assert away < most + 0.005


@pytest.mark.parametrize("mean", [0.0, -0.2, 0.24])
def test_equivalence_is_a_90_percent_interval_within_the_margin(mean):
    for seed in range(20):
        drawn = np.random.default_rng(seed).normal(mean, 0.15, 5)
        interval = stats.ttest_1samp(drawn, 0).confidence_interval(0.90)
        p = laboratory.equivalence(dict(enumerate(70 + drawn)), dict.fromkeys(range(5), 70.0))
        assert (p < 0.05) == (interval.low > -0.25 and interval.high < 0.25)
