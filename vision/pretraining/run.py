"""A run of pre-training: what is loaded, what it says and measures before the first step, and its
results.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from dystress_text.analysis.page import leave_report, render_page
from dystress_text.analysis.runs import read_finished
from dystress_text.errors import ParameterError
from dystress_text.io.atomic import versions
from dystress_text.losses.other_losses import QueueInfoNCELoss
from dystress_text.training.accelerator import (
    StopSignals,
    describe,
    make_accelerator,
    on_main_process,
)
from dystress_text.training.allocator import keep_freed_memory
from dystress_text.training.run import before_first_step, begin_record, end_record, open_run
from dystress_text.training.run_folder import IMAGE_PROGRAM, read_record, write_record
from dystress_text.training.run_state import REPLACING
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer
from vision.data.augment import SimclrAugment, crop_of
from vision.data.crops import RandomCrop
from vision.data.images import DecodedImages, ImageSet, NoAccuracyError, mean_std
from vision.data.loading import load_images, load_test
from vision.data.views import RandomViews
from vision.evaluation.knn import OnlineKnn
from vision.evaluation.table import page_tables
from vision.pretraining.build_task import make_optimizer, objective_of, prepared, task_of
from vision.pretraining.negative_free import WMSELoss
from vision.pretraining.neighbours import gallery, nearest
from vision.pretraining.settings import SMALLEST_CROP, PretrainSettings
from vision.pretraining.task import PretrainTask
from vision.resnet import ImageInput, build_encoder, load_encoder

# images that a CPU's evaluation while training takes: all would take minutes
CPU_BANK = 10_000
CPU_QUERIES = 3_000


def pretrain(settings: PretrainSettings) -> dict[str, Any]:
    """Pre-train with settings, on all processes of a launch; return what ``run.json`` holds."""
    training = settings.training
    accelerator = make_accelerator(training)
    run_opened = open_run(accelerator, training, settings.options())
    with keep_freed_memory(), run_opened as (folder, finished):
        if finished is not None:
            return finished
        with before_first_step(accelerator):
            task, measured = make_task(settings, accelerator)
            record = _new_record(settings, task)
            optimizer = partial(
                make_optimizer,
                training=training,
                vision=settings.vision,
                batch_size=training.train_batch_size,
            )
            run = Run(
                task=task,
                samples=len(task.views.images),
                options=record["settings"],
                data_id=record["data"]["id"],
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
                publish = partial(_publish, settings, trainer, task, record, folder)
                on_main_process(accelerator, publish)
        finally:
            trainer.close()
    return record


def make_task(settings: PretrainSettings, accelerator: Accelerator) -> tuple[PretrainTask, str]:
    """Load images and network; return the task, and what is measured while it trains."""
    vision = settings.vision
    training = settings.training
    check_batch(settings, training.train_batch_size, accelerator.num_processes)
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
    crop = crop_of(images.size, vision.image_size)
    encoder.input = ImageInput(vision.image_size, crop, *mean_std(images))
    images = images.sample(vision.max_train_samples, training.seed)
    knn: OnlineKnn | None = None
    try:
        knn = _online_knn(settings, images, encoder.input, accelerator)
        measured = (
            f"kNN while training (knn{knn.k}): {len(knn.bank):,} training images vote on "
            f"{len(knn.queries):,} test images"
        )
    except NoAccuracyError as error:
        measured = f"no accuracy while training ({error})"
    metric = training.metric_for_best_model
    if metric not in (None, f"knn{vision.knn_k}" if knn else None):
        reason = f"{metric!r} is not measured; {measured}"
        raise ParameterError("metric_for_best_model", reason)
    views = _views(settings, images, encoder.input)
    return task_of(settings, encoder, views, objective, knn, accelerator), measured


def _new_record(settings: PretrainSettings, task: PretrainTask) -> dict[str, Any]:
    """Return what ``run.json`` holds from the start on."""
    images = task.views.images
    knn = task.online
    return {
        "program": IMAGE_PROGRAM,
        "settings": settings.options(),
        "loss": str(settings.loss),
        "data": {
            "name": images.name,
            "variant": images.variant,
            "images": len(images),
            **_identity(images, settings),
            "classes": len(images.classes),
            "corrupt": images.corrupt,
            "loaded_size": images.size,
            "knn_bank": None if knn is None else len(knn.bank),
            "knn_queries": None if knn is None else len(knn.queries),
        },
        "versions": versions("kornia", "pytorch_optimizer", "pillow"),
    }


def _begin(
    settings: PretrainSettings,
    trainer: Trainer,
    task: PretrainTask,
    record: dict[str, Any],
    measured: str,
    folder: Path,
) -> None:
    """Say what is trained, measure the untrained network, and write the record."""
    images = task.views.images
    place = "cropped from the whole picture"
    if isinstance(images, DecodedImages):
        place = f"at {images.size} x {images.size}"
    batch_size = settings.training.train_batch_size
    print(
        f"{len(images):,} images of {images.title}, {len(images.classes)} classes, {place}",
        measured,
        f"loss: {record['loss']}",
        f"{trainer.total_steps:,} steps of {batch_size} images on {describe(trainer.accelerator)}",
        sep="\n",
        flush=True,
    )
    before = read_record(folder) if settings.training.resumes else {}
    record["untrained"] = before.get("untrained") or dict(task.evaluate())
    if task.online is not None:
        then = before.get("neighbours")
        record["neighbours"] = then or {"before": nearest(task.encoder, task.online)}
    begin_record(trainer, settings.training, folder, record)


def _publish(
    settings: PretrainSettings,
    trainer: Trainer,
    task: PretrainTask,
    record: dict[str, Any],
    folder: Path,
) -> None:
    """Find the neighbours of the trained network, and write record and page."""
    output = Path(settings.training.output_dir)
    knn = task.online
    end_record(trainer, settings.training, folder, record)
    if knn is not None:
        saved = load_encoder(output).to(trainer.accelerator.device)
        record["neighbours"]["after"] = nearest(saved, knn)
    record["images_per_second"] = round(trainer.samples_per_second, 1)
    write_record(output, record)

    def page() -> str:
        (finished,), _ = read_finished([output])
        shown = [] if knn is None else [gallery(knn, record["neighbours"])]
        return render_page([finished], page_tables(finished.record), examples=shown)

    lines = [
        f"{record['images_per_second']:,.0f} images/s, "
        f"{record['train_seconds']:,.0f} s of training, "
        f"peak memory {record['peak_memory_gb']:.2f} GB"
    ]
    variant = record["data"]["variant"]
    note = "" if variant is None else f"  ({variant})"
    for metric, value in record["trained"].items():
        untrained = record["untrained"][metric]
        lines.append(f"{metric}: untrained {untrained:.2f}, trained {value:.2f}{note}")
    lines.append(f"\npython vision/evaluate.py --model {output} evaluates the encoder.")
    print(*lines, leave_report(output, page), sep="\n", flush=True)


def _identity(images: ImageSet, settings: PretrainSettings) -> dict[str, str]:
    """What tells the images: ``files`` by name, and ``id``, which has the pixels of small ones too.

    Damaged pixels cannot be compared: with skip_corrupt, a run that is resumed on the same files
    keeps its id.
    """
    output = Path(settings.training.output_dir)
    files = images.files_id
    then = (read_record(output / REPLACING) or read_record(output)).get("data", {})
    if settings.vision.skip_corrupt and settings.training.resumes and then.get("files") == files:
        return {name: then[name] for name in ("files", "id")}
    content = images.checksum() if isinstance(images, DecodedImages) else files
    return {"files": files, "id": f"{images.name}, {len(images)} images, {content}"}


def _views(settings: PretrainSettings, images: ImageSet, image_input: ImageInput) -> RandomViews:
    """Two views of each image, and the small ones of DINO."""
    vision = settings.vision
    crop = RandomCrop(vision.image_size, vision.min_scale)
    augment = SimclrAugment(crop, image_input.mean, image_input.std, vision.jitter, vision.blur)
    views = RandomViews(images, augment, 2, settings.training.seed)
    if not vision.small_crops:
        return views
    # coloured as the others, with areas up to where the large ones begin
    crop = RandomCrop(vision.small_crop_size, SMALLEST_CROP, vision.min_scale)
    return replace(views, others=((replace(augment, crop=crop), vision.small_crops),))


def _online_knn(
    settings: PretrainSettings, images: ImageSet, image_input: ImageInput, accelerator: Accelerator
) -> OnlineKnn:
    """The evaluation while training; NoAccuracyError where there is none."""
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
    return OnlineKnn(images, queries, image_input, vision.knn_k, batch_size)


def check_batch(settings: PretrainSettings, batch: int, processes: int) -> None:
    """Refuse a batch, over all processes, that batch normalisation or whitening cannot take."""
    vision = settings.vision
    # the views go through batch normalisation one after the other
    apart = isinstance(settings.loss, QueueInfoNCELoss) or not vision.one_pass
    if apart and batch // processes < 2 and not vision.sync_batchnorm:
        reason = "batch normalisation needs at least 2 images a process (one has no spread)"
        raise ParameterError("train_batch_size", reason)
    if isinstance(settings.loss, WMSELoss) and batch <= vision.out_dim:
        reason = (
            f"the loss w_mse() whitens {vision.out_dim} dimensions, so the batch must have more "
            f"images than that, but it has {batch}; {max(1, batch // 2)} is the usual half"
        )
        raise ParameterError("out_dim", reason)
