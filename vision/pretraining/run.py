"""A run of pre-training: from loading images and network to the record and page."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import set_seed

from dystress_text.analysis.page import leave_report, render_page
from dystress_text.analysis.runs import FinishedRun
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
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer
from vision.data.augment import EVALUATION_CROP, SimclrAugment
from vision.data.crops import RandomCrop
from vision.data.images import DecodedImages, ImageSet, NoAccuracyError, mean_std
from vision.data.loading import load_images, load_test
from vision.data.views import RandomViews
from vision.evaluation.knn import OnlineKnn
from vision.pretraining.build_task import make_optimizer, objective_of, prepared, task_of
from vision.pretraining.settings import SMALLEST_CROP, PretrainSettings
from vision.pretraining.task import PretrainTask
from vision.resnet import ImageInput, build_encoder

# images that a CPU's evaluation while training takes: all would take minutes
CPU_BANK = 10_000
CPU_QUERIES = 3_000


@restored_global_state()
def pretrain(settings: PretrainSettings) -> RunRecord:
    """Pre-train with settings, on all processes of a launch; return the record."""
    training = settings.training
    accelerator = make_accelerator(training)
    with open_run(accelerator, training, settings.options()) as (folder, finished):
        if finished is not None:
            return finished
        with before_first_step(accelerator):
            task, measured = make_task(settings, accelerator)
            record = _new_record(settings, task, folder)
            optimizer = partial(
                make_optimizer,
                training=training,
                vision=settings.vision,
                batch_size=training.train_batch_size,
                preset=settings.preset,
            )
            run = Run(
                task=task,
                samples=len(task.views.images),
                options=record.settings,
                data_id=record.data["id"],
                record=record,
                make_optimizer=optimizer,
                best_metric=training.metric_for_best_model,
            )
            trainer = Trainer(run, training, accelerator, folder)
        try:
            begin = partial(_begin, settings, trainer, task, record, measured, folder)
            on_main_process(accelerator, begin)
            trainer.fit()
            with StopSignals(accelerator):  # the page takes seconds; a signal waits
                publish = partial(_publish, settings, trainer, record, folder)
                record = on_main_process(accelerator, publish)
        finally:
            trainer.close()
    return record


def make_task(settings: PretrainSettings, accelerator: Accelerator) -> tuple[PretrainTask, str]:
    """Load images and network; return the task, and what is measured while it trains."""
    vision = settings.vision
    training = settings.training
    set_seed(training.seed)
    encoder = build_encoder(vision.architecture, vision.stem, vision.projector, vision.out_dim)
    prepared(encoder, vision, accelerator)
    objective = objective_of(settings, accelerator)
    images = load_images(
        vision.dataset,
        "train",
        vision.data_dir,
        None,
        vision.skip_corrupt,
        vision.image_size,
        vision.train_list,
        keep_count=True,
    )
    crop = 1.0 if images.size == vision.image_size else EVALUATION_CROP
    encoder.input = ImageInput(vision.image_size, crop, *mean_std(images))
    images = images.sample(vision.max_train_samples, training.seed)
    knn: OnlineKnn | None = None
    try:
        knn = _online_knn(settings, images, accelerator)
        measured = (
            f"kNN while training ({knn.metric.name}): {len(knn.bank):,} training images vote on "
            f"{len(knn.queries):,} test images"
        )
    except NoAccuracyError as error:
        measured = f"no accuracy while training ({error})"
    metric = training.metric_for_best_model
    if metric is not None and (knn is None or metric != knn.metric.name):
        reason = f"{metric!r} is not measured; {measured}"
        raise ParameterError("metric_for_best_model", reason)
    views = _views(settings, images, encoder.input)
    return task_of(settings, encoder, views, objective, knn, accelerator), measured


def _new_record(settings: PretrainSettings, task: PretrainTask, folder: Path) -> RunRecord:
    """Return the record of a run before its first step."""
    images = task.views.images
    knn = task.online
    return RunRecord(
        program=IMAGE_PROGRAM,
        settings=settings.options(),
        loss=str(settings.loss),
        metrics={} if knn is None else {knn.metric.name: knn.metric},
        data={
            "name": images.name,
            "variant": images.variant,
            "images": len(images),
            **_identity(images, settings, folder),
            "classes": len(images.classes),
            "corrupt": images.corrupt,
            "knn_bank": None if knn is None else len(knn.bank),
            "knn_queries": None if knn is None else len(knn.queries),
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


def _begin(
    settings: PretrainSettings,
    trainer: Trainer,
    task: PretrainTask,
    record: RunRecord,
    measured: str,
    folder: Path,
) -> None:
    """Print what is trained, measure the untrained network, and write the record."""
    images = task.views.images
    batch_size = settings.training.train_batch_size
    print(
        f"{len(images):,} images of {images.title}, {len(images.classes)} classes",
        measured,
        f"loss: {record.loss}",
        f"{trainer.total_steps:,} steps of {batch_size} images on {describe(trainer.accelerator)}",
        sep="\n",
        flush=True,
    )
    before = find_record(folder).untrained if settings.training.resumes else {}
    record.untrained = before or {"": dict(task.evaluate())}
    begin_record(trainer, record)


def _publish(
    settings: PretrainSettings,
    trainer: Trainer,
    record: RunRecord,
    folder: Path,
) -> RunRecord:
    """Write record and page, print the results of the run, and return the record."""
    output = Path(settings.training.output_dir)
    end_record(trainer, record)
    finish_run(trainer, record)
    run = FinishedRun(output, record)
    lines = [
        f"{record.samples_per_second:,.0f} images/s, {record.train_seconds:,.0f} s of training, "
        f"peak memory {record.peak_memory_gb:.2f} GB"
    ]
    variant = record.data["variant"]
    note = "" if variant is None else f"  ({variant})"
    for metric, value in record.trained.items():
        untrained = record.untrained[""][metric]
        lines.append(f"{metric}: untrained {untrained:.2f}, trained {value:.2f}{note}")
    lines.append(f"\npython vision/evaluate.py --model {output} evaluates the encoder.")
    print(*lines, leave_report(output, lambda: render_page([run])), sep="\n", flush=True)
    return record


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


def _online_knn(
    settings: PretrainSettings, images: ImageSet, accelerator: Accelerator
) -> OnlineKnn:
    """Return the evaluation while training, or raise NoAccuracyError."""
    vision = settings.vision
    if vision.knn_k == 0:
        raise NoAccuracyError("knn_k", "0")
    queries = load_test(images, vision.dataset, vision.data_dir, vision.skip_corrupt)
    if accelerator.device.type == "cpu":
        images = images.sample(CPU_BANK, settings.training.seed)
        queries = queries.sample(CPU_QUERIES, settings.training.seed)
    if vision.knn_k > len(images):
        reason = f"{vision.knn_k} neighbours of {len(images)} training images; 0 for no evaluation"
        raise ParameterError("knn_k", reason)
    batch_size = settings.training.train_batch_size // accelerator.num_processes
    return OnlineKnn(images, queries, vision.knn_k, batch_size)
