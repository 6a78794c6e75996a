"""A run of pre-training, from its settings to the record and the page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote

from dystress_text.analysis.finished_run import FinishedRun, leave_report
from dystress_text.cli.extras import require
from dystress_text.cli.text_table import TextTable
from dystress_text.io.atomic import versions
from dystress_text.training.accelerator import (
    StopSignals,
    before_first_step,
    describe,
    make_accelerator,
    on_main_process,
)
from dystress_text.training.global_state import restored_global_state
from dystress_text.training.run import (
    begin_record,
    end_record,
    finish_run,
    open_run,
)
from dystress_text.training.run_folder import IMAGE_PROGRAM, find_record
from dystress_text.training.run_record import RunRecord
from dystress_text.training.task import TrainingPlan
from dystress_text.training.trainer import Trainer
from vision.data.decoding import pixel_limit
from vision.data.images import DecodedImages, ImageSet
from vision.pretraining.build_task import PreparedRun, make_optimizer, prepare_run
from vision.pretraining.held_out import HEADING, gallery, nearest
from vision.pretraining.settings import PretrainSettings
from vision.pretraining.task import PretrainTask
from vision.resnet import code_for_exporting, load_encoder


@restored_global_state()
def pretrain(settings: PretrainSettings) -> RunRecord:
    """Pre-train with settings, on all processes of a launch; return the record."""
    accelerator = make_accelerator(settings.training)
    with (
        pixel_limit(settings.vision.max_pixels),
        open_run(accelerator, settings.training, settings.requested()) as (folder, finished),
    ):
        if finished is not None:
            return finished
        with before_first_step(accelerator):
            prepared_run = prepare_run(settings, accelerator)
            settings, task, _, _ = prepared_run
            record = _new_record(settings, task, folder)
            plan = TrainingPlan(
                task=task,
                samples=len(task.views.images),
                data_id=record.data["id"],
                record=record,
                make_optimizer=partial(make_optimizer, settings=settings),
            )
            trainer = Trainer(plan, settings.training, accelerator, folder)
        try:
            on_main_process(accelerator, partial(_begin, prepared_run, trainer, record, folder))
            trainer.fit()
            with StopSignals(accelerator):  # the page takes seconds; a signal waits
                publish = partial(_publish, prepared_run, trainer, record)
                record = on_main_process(accelerator, publish)
        finally:
            trainer.close()
    return record


def _new_record(settings: PretrainSettings, task: PretrainTask, folder: Path) -> RunRecord:
    """Return the record of a run before its first step."""
    images = task.views.images
    online = task.online
    return RunRecord(
        program=IMAGE_PROGRAM,
        settings=settings.options(),
        metrics={} if online is None else {online.metric.name: online.metric},
        data={
            "name": images.name,
            "variant": images.variant,
            "images": len(images),
            "size": images.size,  # height and width; None if they differ
            **_identity(images, settings, folder),
            "classes": len(images.classes),
            "corrupt": images.corrupt,
            "knn_bank": None,
            "knn_queries": None,
            "held_out": 0,
            **({} if online is None else online.counts),
        },
        versions=versions("kornia", "pytorch_optimizer", "pillow"),
    )


def _identity(images: ImageSet, settings: PretrainSettings, folder: Path) -> dict[str, str]:
    """Return ``files``, a hash of the file names, and ``id``, which must not change on resuming.

    The id of images in memory includes a hash of their pixels. With ``skip_corrupt`` a run keeps
    its id as long as the files have the same names, since a damaged file changes the pixels.
    """
    files = images.files_id
    before = find_record(folder).data
    if settings.vision.skip_corrupt and settings.training.resumes and before.get("files") == files:
        return {"files": files, "id": before["id"]}
    content = images.checksum() if isinstance(images, DecodedImages) else files
    return {"files": files, "id": f"{images.name}, {len(images)} images, {content}"}


def _begin(prepared_run: PreparedRun, trainer: Trainer, record: RunRecord, folder: Path) -> None:
    """Print what the run trains on, measure the untrained network, and write the record."""
    settings, task, examples, notes = prepared_run
    images = task.views.images
    batch_size = settings.training.train_batch_size
    decoded = "decoded in each step at their own sizes, large JPEGs at a part of theirs"
    if isinstance(images, DecodedImages):
        decoded = f"{images.size[1]} x {images.size[0]} pixels, in memory"
    print(
        f"{len(images):,} images of {images.title}, {len(images.classes)} classes, {decoded}",
        *images.notes,
        *notes,
        f"loss: {record.loss}",
        f"{trainer.total_steps:,} steps of {batch_size} images on {describe(trainer.accelerator)}",
        sep="\n",
        flush=True,
    )
    earlier = find_record(folder) if settings.training.resumes else RunRecord()
    record.untrained = earlier.untrained or {"": dict(task.evaluate())}
    if not settings.vision.no_samples:
        record.nearest = earlier.nearest or nearest(task.encoder, examples, batch_size)
    begin_record(trainer, record)


def _publish(prepared_run: PreparedRun, trainer: Trainer, record: RunRecord) -> RunRecord:
    """Write record and page, print the results of the run, and return the record."""
    settings, task, examples, _ = prepared_run
    output = Path(settings.training.output_dir)
    end_record(trainer, record)
    finish_run(trainer, record)

    def page() -> str:
        require("plots", "a page")
        from dystress_text.analysis.page import render_page

        pictures = []
        if record.nearest is not None:
            encoder = load_encoder(output).to(trainer.accelerator.device)  # of the best step
            trained = nearest(encoder, examples, settings.training.train_batch_size)
            pictures = gallery(examples, record.nearest, trained)
        code = code_for_exporting(task.encoder.description, str(output))
        table: TextTable = [["", "code"], ["loading it", code]]
        tables = [("The backbone in timm and torchvision", table)] if code else []
        return render_page([FinishedRun(output, record)], tables, examples=[(HEADING, pictures)])

    lines = [
        f"{record.samples_per_second:,.0f} images/s, {record.train_seconds:,.0f} s of training, "
        f"peak memory {record.peak_memory_gb:.2f} GB"
    ]
    variant = record.data["variant"]
    note = "" if variant is None else f"  ({variant})"
    for metric, value in record.trained.items():
        untrained = record.untrained[""][metric]
        lines.append(f"{metric}: untrained {untrained:.2f}, trained {value:.2f}{note}")
    lines.append(f"\n{_next_command(settings, record)}.")
    print(*lines, leave_report(output, page), sep="\n", flush=True)
    return record


def _next_command(settings: PretrainSettings, record: RunRecord) -> str:
    """Return a command that evaluates the encoder, or without labels writes its features."""
    command = f"python vision/evaluate.py --model {quote(settings.training.output_dir)}"
    if settings.vision.skip_corrupt:
        command += " --skip_corrupt"
    if settings.vision.max_pixels is not None:
        command += f" --max_pixels {settings.vision.max_pixels}"
    if record.data["knn_queries"] is None:
        return f"{command} --features features.npz writes its features"
    return f"{command} evaluates the encoder"
