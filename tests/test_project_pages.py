"""Workflows, issue forms and the citation have the form that GitHub reads, and say what the project
says elsewhere.
"""

import re
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from dystress_text import __version__
from dystress_text.export.citation import CITATION

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*"))
CFF = ROOT / "CITATION.cff"


@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.github-workflows", WORKFLOWS),
     ("custom.github-workflows-require-timeout", WORKFLOWS),
     ("vendor.github-issue-forms", FORMS),
     ("vendor.github-issue-config", [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
     ("vendor.citation-file-format", [CFF])],
)  # fmt: skip
def test_forms(schema, files):
    assert files
    result = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *map(str, files)])
    assert result.exit_code == 0, result.output  # the schema comes with check-jsonschema


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_are_careful(file):
    workflow = yaml.safe_load(file.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    assert "secrets." not in file.read_text()
    actions = re.findall(r"uses: (.*)", file.read_text())
    assert len(actions) == sum("uses" in step for step in steps)
    assert all(
        re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action) for action in actions
    )
    programs = re.findall(r"\.ci/\w+", " ".join(step.get("run", "") for step in steps))
    assert programs
    assert all((ROOT / program).is_file() for program in programs)


def test_the_hooks_have_the_ruff_of_the_tested_set():
    (version,) = re.findall(r"^ruff==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"].partition(" ")[0] for hook in local["hooks"]] == ["ruff", "ruff"]
    assert all(f"required-version='=={version}'" in hook["entry"] for hook in local["hooks"])


def test_the_citation_is_the_papers_and_of_this_version():
    software = yaml.safe_load(CFF.read_text())
    paper = software["preferred-citation"]
    assert f"{{{paper['title']}}}" in CITATION
    assert (
        " and ".join(f"{a['given-names']} {a['family-names']}" for a in paper["authors"])
        in CITATION
    )
    assert f"{{{paper['year']}}}" in CITATION
    assert software["version"] == __version__
    assert (
        f"## {__version__} - {software['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    )
