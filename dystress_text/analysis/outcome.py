"""Describe the outcome of a run: its figures, and the checkpoint that was kept."""

from __future__ import annotations

from dystress_text.cli.text_table import cell
from dystress_text.training.run_record import BASE, RunRecord

Table = list[list[str]]  # cells as text, the header first


def outcome(record: RunRecord) -> list[str]:
    """Return lines: collapse, main figures, lexical baselines that win, and the kept step."""
    figures = [_figures(record), *held_out(record)]
    return [*collapse(record), *figures, *not_beaten(record), _kept(record)]


def collapse(record: RunRecord) -> list[str]:
    """Return a line if the embeddings collapsed, else []."""
    if record.collapsed_step is None:
        return []
    kept = "no model was saved before"
    if record.best_step is not None and record.best_step < record.collapsed_step:
        kept = f"the model of step {record.best_step:,} is kept"
    return [
        f"Collapsed: at step {record.collapsed_step:,} all samples have one embedding (mean cosine "
        f"1.0000); {kept}. Lower the learning rate or raise the temperature"
    ]


def held_out(record: RunRecord) -> list[str]:
    """Return lines about the gain on held-out rows; [] for a run without them."""
    held = record.held_out
    if held is None:
        return []
    before = BASE if BASE in record.untrained else record.start
    gain = f"{held.gain:+z.1f}"
    if held.error is not None:
        half = 1.96 * held.error
        low, high = max(held.gain - half, -100), min(held.gain + half, 100)
        gain += f" ({low:z.1f} to {high:z.1f}; {held.texts} held-out samples, paired)"
    return [
        f"recall@1 of held-out pairs x 100: trained - {before}: {gain}",
        "This measures whether an anchor retrieves its positive among those of the held-out rows; "
        "among more texts it is harder.",
    ]


def not_beaten(record: RunRecord) -> list[str]:
    """Return a line for each measure on which the trained model is not above a baseline."""
    return [
        f"not above {baseline}: {name} {record.trained[name]:.1f}, {baseline} {floor:.1f}"
        for name, baseline, floor in record.not_above_baseline
    ]


def _figures(record: RunRecord) -> str:
    """Return a line on the metric that selected the checkpoint, or on the first one."""
    if not record.trained:
        shown = len(record.samples.get("trained", ()))
        if shown:
            return f"{shown} texts are shown with their nearest three before and after training"
        return "No metric was measured"
    metric = str(record.settings.get("metric_for_best_model"))
    if metric not in record.trained:
        metric = next(iter(record.trained))
    figures = record.compared.items()
    known = [f"{label} {each[metric]:.2f}" for label, each in figures if metric in each]
    return f"{record.metric(metric).full_title}: {', '.join(known)}; 1 seed"


def _kept(record: RunRecord) -> str:
    chose = record.step_chosen_by
    if chose is None or record.best_step is None:
        return f"Kept: the last step, {record.steps:,}"
    step = f"step {record.best_step:,} of {record.steps:,}"
    return f"Kept: {step}, chosen by {chose} (not a test score)"


def results(record: RunRecord) -> Table:
    """Return a table row for each metric: before and after training, and the lexical baseline."""
    figures = record.compared
    rows = [["", *figures]]
    for metric in record.trained:
        cells = [cell(each.get(metric)) for each in figures.values()]
        rows.append([record.metric(metric).full_title, *cells])
    return rows
