"""A run of pre-training: from loading images and network to the record and page."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from accelerate import Accelerator
from accelerate.utils import set_seed

from dystress_text.analysis.finished_run import FinishedRun, leave_report
from dystress_text.cli.extras import require
from dystress_text.cli.text_table import TextTable
from dystress_text.errors import ParameterError
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
from vision.data.augment import SimclrAugment
from vision.data.crops import RandomCrop
from vision.data.decoding import pixel_limit
from vision.data.images import DecodedImages, ImageSet, NoAccuracyError, mean_std, square_of
from vision.data.loading import load_images, load_test
from vision.data.views import RandomViews
from vision.evaluation.knn import OnlineKnn
from vision.pretraining.build_task import make_optimizer, objective_of, prepared, task_of
from vision.pretraining.held_out import (
    HEADING,
    DividedImages,
    HeldOutAgreement,
    divide,
    gallery,
    nearest,
)
from vision.pretraining.settings import SMALLEST_CROP, PretrainSettings
from vision.pretraining.task import PretrainTask
from vision.resnet import ImageInput, build_encoder, code_for_exporting, load_encoder

LIBRARIES = "The backbone in timm and torchvision"
# images that a CPU's evaluation while training takes: all would take minutes
CPU_BANK = 10_000
CPU_QUERIES = 3_000


class PreparedRun(NamedTuple):
    """What a run of pre-training needs before its first step."""

    settings: PretrainSettings  # their batch is not larger than the set
    task: PretrainTask
    examples: ImageSet  # for the page: pictures held out, if any, then some of training
    notes: tuple[str, ...]  # on what is measured, and on the batch


@restored_global_state()
def pretrain(settings: PretrainSettings) -> RunRecord:
    """Pre-train with settings, on all processes of a launch; return the record."""
    accelerator = make_accelerator(settings.training)
    with (
        pixel_limit(settings.vision.max_pixels),
        open_run(accelerator, settings.training, settings.asked()) as (folder, finished),
    ):
        if finished is not None:
            return finished
        with before_first_step(accelerator):
            prepared_run = prepare_run(settings, accelerator)
            settings, task, _, _ = prepared_run
            training = settings.training
            record = _new_record(settings, task, folder)
            optimizer = partial(
                make_optimizer,
                training=training,
                vision=settings.vision,
                batch_size=training.train_batch_size,
                preset=settings.preset,
            )
            plan = TrainingPlan(
                task=task,
                samples=len(task.views.images),
                data_id=record.data["id"],
                record=record,
                make_optimizer=optimizer,
            )
            trainer = Trainer(plan, training, accelerator, folder)
        try:
            begin = partial(_begin, prepared_run, trainer, record, folder)
            on_main_process(accelerator, begin)
            trainer.fit()
            with StopSignals(accelerator):  # the page takes seconds; a signal waits
                publish = partial(_publish, prepared_run, trainer, record)
                record = on_main_process(accelerator, publish)
        finally:
            trainer.close()
    return record


def prepare_run(settings: PretrainSettings, accelerator: Accelerator) -> PreparedRun:
    """Load images and network, and make the task."""
    vision = settings.vision
    seed = settings.training.seed
    set_seed(seed)
    encoder = build_encoder(vision.architecture, vision.stem, vision.projector, vision.out_dim)
    prepared(encoder, vision, accelerator)
    objective = objective_of(settings, accelerator)
    images = load_images(
        vision.dataset,
        "train",
        vision.data_dir,
        vision.skip_corrupt,
        vision.image_size,
        vision.train_list,
        keep_count=True,
    )
    square = square_of(images, vision.image_size)
    encoder.input = ImageInput(square.image_size, square.crop, *mean_std(images, square))
    images = images.sample(vision.max_train_samples, seed)
    notes: list[str] = []
    queries: ImageSet | None = None
    held_out = 0
    if vision.knn_k:
        held_out = vision.held_out
        try:
            queries = load_test(
                images, vision.dataset, vision.data_dir, vision.skip_corrupt, vision.image_size
            )
            held_out = 0
            notes += queries.notes
        except NoAccuracyError as error:
            notes.append(f"no accuracy while training ({error})")
    divided = divide(images, held_out, vision.knn_k, seed)
    if held_out and not divided.held_out:
        count = f"{len(images):,}"
        notes.append(f"none of {count} images is held out: too few for knn_k {vision.knn_k}")
    settings = _fitted(settings, len(divided.train), accelerator.num_processes)
    # whether each forward pass sees one view of each image
    apart = not vision.one_pass or vision.small_crops == 1
    of_process = settings.training.train_batch_size // accelerator.num_processes
    if apart and of_process < 2 and not vision.sync_batchnorm:
        reason = "batch normalisation needs at least 2 images in each process"
        raise ParameterError("train_batch_size", reason)
    views = _views(settings, divided.train, encoder.input)
    online = _online(settings, divided, queries, views, accelerator)
    if online is not None:
        notes.append(online.description)
    metric = settings.training.metric_for_best_model
    if metric is not None and (online is None or metric != online.metric.name):
        reason = f"{metric!r} is not measured; {'; '.join(notes)}"
        raise ParameterError("metric_for_best_model", reason)
    task = task_of(settings, encoder, views, objective, online, accelerator)
    return PreparedRun(settings, task, divided.examples, tuple(notes))


def _fitted(settings: PretrainSettings, count: int, processes: int) -> PretrainSettings:
    """Return the settings with a batch of all images, if there are fewer and none was given."""
    fewer = count // processes * processes
    batch_size = settings.training.train_batch_size
    if "train_batch_size" in settings.chosen or fewer >= batch_size:
        return settings
    if fewer < 2:
        reason = f"training needs 2 images at least, and one in each process; there are {count}"
        raise ParameterError("dataset", reason)
    return replace(settings, training=replace(settings.training, train_batch_size=fewer))


def _new_record(settings: PretrainSettings, task: PretrainTask, folder: Path) -> RunRecord:
    """Return the record of a run before its first step."""
    images = task.views.images
    online = task.online
    knn = online if isinstance(online, OnlineKnn) else None
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
            "knn_bank": None if knn is None else len(knn.bank),
            "knn_queries": None if knn is None else len(knn.queries),
            "held_out": online.count if isinstance(online, HeldOutAgreement) else 0,
        },
        versions=versions("kornia", "pytorch_optimizer", "pillow"),
    )


def _identity(images: ImageSet, settings: PretrainSettings, folder: Path) -> dict[str, str]:
    """Return what identifies the images: a hash of the files' names, and a text for resuming.

    The text of small images includes a hash of their pixels. With skip_corrupt, a run that is
    resumed on the same files keeps its text, since damaged pixels cannot be compared.
    """
    files = images.files_id
    before = find_record(folder).data
    if settings.vision.skip_corrupt and settings.training.resumes and before.get("files") == files:
        return {"files": files, "id": before["id"]}
    content = files
    if isinstance(images, DecodedImages):
        content = images.checksum()
    return {"files": files, "id": f"{images.name}, {len(images)} images, {content}"}


def _begin(prepared_run: PreparedRun, trainer: Trainer, record: RunRecord, folder: Path) -> None:
    """Print what is trained, measure the untrained network, and write the record."""
    settings, task, examples, notes = prepared_run
    images = task.views.images
    batch_size = settings.training.train_batch_size
    decoded = "decoded in each step at their own sizes, large JPEGs at a part of theirs"
    if isinstance(images, DecodedImages):
        height, width = images.size
        decoded = f"{width} x {height} pixels, in memory"
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
            encoder = load_encoder(output).to(trainer.accelerator.device)
            trained = nearest(encoder, examples, settings.training.train_batch_size)
            pictures = gallery(examples, record.nearest, trained)
        code = code_for_exporting(task.encoder.description, str(output))
        tables: list[tuple[str, TextTable]] = []
        if code:
            tables.append((LIBRARIES, [["", "code"], ["loading it", code]]))
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
    """Return what to do with the encoder: without labelled test images there are only features."""
    command = f"python vision/evaluate.py --model {quote(settings.training.output_dir)}"
    if settings.vision.skip_corrupt:
        command += " --skip_corrupt"
    if settings.vision.max_pixels is not None:
        command += f" --max_pixels {settings.vision.max_pixels}"
    if record.data["knn_queries"] is None:
        return f"{command} --features features.npz writes its features"
    return f"{command} evaluates the encoder"


def _views(settings: PretrainSettings, images: ImageSet, image_input: ImageInput) -> RandomViews:
    """Return two views of each image, and DINO's small ones."""
    vision = settings.vision
    crop = RandomCrop(vision.image_size, vision.min_scale)
    augment = SimclrAugment(crop, image_input.mean, image_input.std, vision.jitter, vision.blur)
    views = RandomViews(images, augment, 2, settings.training.seed)
    if not vision.small_crops:
        return views
    # coloured as the others, with areas up to where the large ones begin
    small_crop = RandomCrop(vision.small_crop_size, SMALLEST_CROP, vision.min_scale)
    small = replace(augment, crop=small_crop)
    return replace(views, others=((small, vision.small_crops),))


def _online(
    settings: PretrainSettings,
    divided: DividedImages,
    queries: ImageSet | None,
    views: RandomViews,
    accelerator: Accelerator,
) -> OnlineKnn | HeldOutAgreement | None:
    """Return the evaluation while training: of test images, else of held-out ones if there are."""
    k = settings.vision.knn_k
    seed = settings.training.seed
    batch_size = settings.training.train_batch_size // accelerator.num_processes
    bank = divided.train
    if queries is None and not divided.held_out:
        return None
    if queries is not None and accelerator.device.type == "cpu":
        bank = bank.sample(CPU_BANK, seed)
        queries = queries.sample(CPU_QUERIES, seed)
    if k > len(bank):
        reason = f"{k} neighbours of {len(bank)} training images; 0 for no evaluation"
        raise ParameterError("knn_k", reason)
    if queries is not None:
        return OnlineKnn(bank, queries, k, batch_size)
    seen = replace(views, images=divided.examples, count=2, others=())
    return HeldOutAgreement(seen, divided.held_out, k, batch_size)
