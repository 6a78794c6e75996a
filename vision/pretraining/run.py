"""A pre-training run from its settings to the saved encoder and the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate.utils import set_seed

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.errors import UserError
from dystress_text.files.whole import versions
from dystress_text.report.page import leave_page
from dystress_text.training.accelerator import describe, global_batch_size, make_accelerator, on_main_process
from dystress_text.training.build_loss import learned_end_points, learned_group
from dystress_text.training.run_folder import check_output, prepare_output, read_record, write_record
from dystress_text.training.similarity_log import watch_of
from dystress_text.training.trainer import Trainer
from vision.data.augment import SimclrAugment, crop_of
from vision.data.images import ImageSet, mean_std
from vision.data.loading import load_images
from vision.data.sources import NoSuchSplitError
from vision.evaluation.features import transform_of
from vision.evaluation.online import OnlineKnn
from vision.pretraining.allocator import keep_freed_memory
from vision.pretraining.build_task import encoder_of, objective_of, task_of
from vision.pretraining.optimizers import make_optimizer
from vision.pretraining.settings import PretrainSettings, VisionSettings, check_metric
from vision.resnet import ImageInput


def pretrain(settings: PretrainSettings) -> dict[str, Any]:
    """Run the whole recipe and return what ``run.json`` holds.

    Raises:
        UserError: settings or data that do not fit, or a run that cannot be resumed.
    """
    vision, engine = settings.vision, settings.engine
    accelerator = make_accelerator(engine)
    processes, output = accelerator.num_processes, Path(engine.output_dir)
    check_output(output, engine)
    batch = global_batch_size(engine, processes)
    check_batch(settings, batch, processes)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    set_seed(engine.seed)
    encoder = encoder_of(vision, accelerator)
    objective = objective_of(settings, accelerator)
    images = load_images(vision.dataset, "train", vision.data_dir, None, vision.skip_corrupt, vision.image_size)
    mean, std = mean_std(images)
    encoder.input = ImageInput(vision.image_size, crop_of(images.size, vision.image_size), mean, std)
    images = images.sample(vision.max_train_samples, engine.seed)
    knn = _online_knn(vision, images, encoder.input)
    check_metric(engine, None if knn is None else knn.metric)
    augment = SimclrAugment(vision.image_size, mean, std, vision.jitter, vision.blur, vision.min_scale)
    task = task_of(settings, encoder, images, augment, objective, knn, accelerator)
    watch = watch_of(engine, objective) if isinstance(objective, ContrastiveLoss) else None
    data_id = f"{images.name}, {len(images)} images, {images.checksum()}"
    trainer = Trainer(
        task, len(images), engine, accelerator, settings.options(), data_id,
        lambda network: make_optimizer(network, engine, vision, batch), watch,
        learned_group(objective, settings.loss),
    )  # fmt: skip
    temperature = objective.temperature if isinstance(objective, ContrastiveLoss) else None
    record: dict[str, Any] = {
        "program": "vision/train.py",
        "settings": settings.options(),
        "objective": type(objective).__name__,
        "temperature": None if temperature is None else repr(temperature),
        "data": {
            "name": images.name,
            "variant": images.variant,
            "images": len(images),
            "classes": len(images.classes),
            "corrupt": images.corrupt,
            "loaded_size": images.size,
        },
        "device": describe(accelerator),
        "processes": processes,
        "versions": versions("kornia", "pytorch_optimizer", "pillow"),
    }
    accelerator.wait_for_everyone()

    def start() -> None:
        before = read_record(output).get("untrained") if engine.resume_from_checkpoint else None
        prepare_output(output, engine, record)
        _say(
            f"{len(images):,} images of {images.title}, {len(images.classes)} classes, at {images.size} x {images.size}"
        )
        if knn is None and vision.knn_k > 0:
            _say("no test split with labels: no accuracy while training")
        _say(settings.loss.objective if temperature is None else f"{type(objective).__name__} with {temperature}")
        _say(f"{trainer.total_steps:,} steps of {batch} images on {describe(accelerator)}")
        if engine.resume_from_checkpoint:
            first = trainer.first_step
            _say(f"going on after step {first:,}" if first else "no checkpoint yet: from the start")
        record["untrained"] = before or dict(task.evaluate())
        write_record(output, record)

    try:
        on_main_process(accelerator, start)
        summary = trainer.fit()
        record |= {
            "trained": summary.metrics,
            "steps": summary.steps,
            "skipped_steps": summary.skipped_steps,
            "train_seconds": round(summary.seconds, 2),
            "images_per_second": round(summary.samples_per_second, 1),
            "peak_memory_gb": round(summary.peak_memory_gb, 3),
            **learned_end_points(temperature),
        }

        def finish() -> None:
            write_record(output, record)
            _report(record, output)
            _say(leave_page(output, temperature))

        on_main_process(accelerator, finish)
    finally:
        trainer.close()
    return record


def _online_knn(vision: VisionSettings, images: ImageSet, image_input: ImageInput) -> OnlineKnn | None:
    """The evaluation while training; None without labels or a test split."""
    if vision.knn_k == 0 or images.labels is None:
        return None
    try:
        queries = load_images(vision.dataset, "test", vision.data_dir, images.size, vision.skip_corrupt)
    except NoSuchSplitError:  # there are training images only
        return None
    if queries.labels is None:
        return None
    if vision.knn_k > len(images):
        raise UserError(f"--knn_k: {vision.knn_k} neighbours of {len(images)} training images; 0 for no evaluation")
    return OnlineKnn(images, queries, transform_of(image_input), vision.knn_k)


def check_batch(settings: PretrainSettings, batch: int, processes: int) -> None:
    """Refuse a batch that batch normalisation or whitening cannot take.

    Args:
        settings: of the run.
        batch: images over all processes.
        processes: their number.

    Raises:
        UserError: too few images a process, or no more images than dimensions to whiten.
    """
    vision, objective = settings.vision, settings.loss.objective
    # a queue's two views go through batch normalisation one after the other, those of other objectives together
    if objective == "queue" and batch // processes < 2 and not vision.sync_batchnorm:
        given = settings.engine.per_device_train_batch_size is not None
        raise UserError(
            f"--{'per_device_train_batch_size' if given else 'train_batch_size'}: batch normalisation needs at least 2 "
            "images a process (one has no spread), or --sync_batchnorm"
        )
    if objective == "w_mse" and batch <= vision.out_dim:
        raise UserError(
            f"--out_dim: objective 'w_mse' whitens {vision.out_dim} dimensions, for which the batch must have more "
            f"images than that, but it has {batch}; --out_dim {max(1, batch // 2)} is the usual half"
        )


def _report(record: dict[str, Any], output: Path) -> None:
    _say(
        f"{record['images_per_second']:,.0f} images/s, {record['train_seconds']:,.0f} s of training, "
        f"peak memory {record['peak_memory_gb']:.2f} GB"
    )
    variant = record["data"]["variant"]
    for metric, value in record["trained"].items():
        note = "" if variant is None else f"  ({variant})"
        _say(f"{metric}: untrained {record['untrained'][metric]:.2f}, trained {value:.2f}{note}")
    _say(f"\npython vision/evaluate.py --model {output} evaluates the encoder.")


def _say(line: str) -> None:
    print(line, flush=True)
