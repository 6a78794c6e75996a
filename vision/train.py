"""Pre-train a ResNet with a contrastive loss whose temperature depends on the similarity of each pair.

    accelerate launch vision/train.py --preset cifar10            # the paper's CIFAR-10 run
    python vision/train.py --preset quickstart                    # no network, no GPU: shapes drawn at run time
    accelerate launch vision/train.py --preset imagenet100 --dataset FOLDER      # own photos, with or without classes
    accelerate launch vision/train.py --preset cifar10 --temp 0.2 # SimCLR's constant temperature
    accelerate launch vision/train.py --preset imagenet100-byol   # the methods without negatives, for comparison

The encoder lands in ``out_vision/`` (``--output_dir``); ``python vision/evaluate.py --model out_vision`` evaluates it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from dystress_text.cli.command_line import exit_code
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.errors import UserError
from dystress_text.files.whole import versions
from dystress_text.report.page import leave_report
from dystress_text.training.accelerator import describe, gather_of, global_batch_size, make_accelerator, on_main_process
from dystress_text.training.arguments import parse_settings
from dystress_text.training.build_loss import learned_end_points, learned_group
from dystress_text.training.run_folder import check_output, prepare_output, read_record, write_record
from dystress_text.training.settings import EngineSettings
from dystress_text.training.similarity_log import SimilarityLog, similarity_log_of
from dystress_text.training.trainer import Trainer
from vision.data.augment import SimclrAugment, crop_of, evaluation_transform
from vision.data.images import ImageSet, load_images, mean_std
from vision.data.sources import NoSuchSplitError
from vision.evaluation.online import OnlineKnn
from vision.pretraining.allocator import keep_freed_memory
from vision.pretraining.batchnorm import synchronise
from vision.pretraining.build_task import task_of
from vision.pretraining.optimizers import make_optimizer
from vision.pretraining.presets import PRESETS
from vision.pretraining.settings import (
    WITHOUT_TEMPERATURE,
    PretrainSettings,
    VisionEngineSettings,
    VisionLossSettings,
    VisionSettings,
)
from vision.pretraining.task import PretrainTask
from vision.resnet import ImageEncoder, ImageInput, build_encoder


def pretrain(settings: PretrainSettings) -> dict[str, Any]:
    """Run the whole recipe and return what ``run.json`` holds.

    Raises:
        UserError: something that the settings or the data must put right, or a run that cannot go on.
    """
    vision, engine = settings.vision, settings.engine
    accelerator = make_accelerator(engine)
    processes, output = accelerator.num_processes, Path(engine.output_dir)
    check_output(output, engine)
    batch = global_batch_size(engine, processes)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    set_seed(engine.seed)
    encoder = _encoder(vision, accelerator)
    images = load_images(vision.dataset, "train", vision.data_dir, None, vision.skip_corrupt, vision.image_size)
    mean, std = mean_std(images)
    encoder.input = ImageInput(vision.image_size, crop_of(images.size, vision.image_size), mean, std)
    images = images.sample(vision.max_train_samples, engine.seed)
    knn = _online_knn(vision, images, encoder.input)
    augment = SimclrAugment(vision.image_size, mean, std, vision.jitter, vision.blur, vision.min_scale)
    task = task_of(settings, encoder, images, augment, knn, accelerator)
    _check_batch(batch // processes, task, settings)
    _check_whitening(batch, settings)
    _check_metric(engine, knn)
    data_id = f"{images.name}, {len(images)} images, {images.checksum()}"
    trainer = Trainer(
        task, len(images), engine, accelerator, settings.options(), data_id,
        lambda network: make_optimizer(network, engine, vision, batch), _watch(settings, task.objective),
        learned_group(task.objective, settings.loss),
    )  # fmt: skip
    temperature = task.objective.temperature if isinstance(task.objective, ContrastiveLoss) else None
    record: dict[str, Any] = {
        "program": "vision/train.py",
        "settings": settings.options(),
        "objective": type(task.objective).__name__,
        "temperature": None if temperature is None else repr(temperature),
        "temperature_parameters": None if temperature is None else temperature.values(),
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
        _say(settings.loss.objective if temperature is None else f"{type(task.objective).__name__} with {temperature}")
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
            _say(leave_report(output, temperature))

        on_main_process(accelerator, finish)
    finally:
        trainer.close()
    return record


def _encoder(vision: VisionSettings, accelerator: Accelerator) -> ImageEncoder:
    encoder = build_encoder(vision.architecture, vision.stem, vision.projector, vision.out_dim)
    gather = gather_of(accelerator)
    if vision.sync_batchnorm and gather is not None:
        synchronise(encoder, gather, accelerator.device)
    return encoder.to(accelerator.device)


def _online_knn(vision: VisionSettings, images: ImageSet, taken: ImageInput) -> OnlineKnn | None:
    """The evaluation, where there are labels and a test split."""
    if vision.knn_k == 0 or images.labels is None:
        return None
    try:
        queries = load_images(vision.dataset, "test", vision.data_dir, images.size, vision.skip_corrupt)
    except NoSuchSplitError:  # training images alone
        return None
    if queries.labels is None:
        return None
    if vision.knn_k > len(images):
        raise UserError(f"--knn_k: {vision.knn_k} neighbours of {len(images)} training images; 0 for no evaluation")
    transform = partial(evaluation_transform, size=taken.image_size, mean=taken.mean, std=taken.std)
    return OnlineKnn(images, queries, transform, vision.knn_k)


def _check_batch(rows: int, task: PretrainTask, settings: PretrainSettings) -> None:
    if rows * task.views_in_one_pass < 2 and not settings.vision.sync_batchnorm:
        given = settings.engine.per_device_train_batch_size is not None
        raise UserError(
            f"--{'per_device_train_batch_size' if given else 'train_batch_size'}: batch normalisation needs at least 2 "
            "images a process (one has no spread), or --sync_batchnorm"
        )


def _check_whitening(batch: int, settings: PretrainSettings) -> None:
    dim = settings.vision.out_dim
    if settings.loss.objective == "w_mse" and batch <= dim:
        raise UserError(
            f"--out_dim: objective 'w_mse' whitens {dim} dimensions, which takes more images than that a batch, and "
            f"the batch is {batch}; --out_dim {max(1, batch // 2)} is the usual half"
        )


def _watch(settings: PretrainSettings, objective: nn.Module) -> SimilarityLog | None:
    if isinstance(objective, ContrastiveLoss):
        return similarity_log_of(settings.engine, objective)
    if settings.engine.log_similarity:
        raise UserError(f"--log_similarity: objective {settings.loss.objective!r} has no negatives to look at")
    return None


def _check_metric(engine: EngineSettings, knn: OnlineKnn | None) -> None:
    wanted, known = engine.metric_for_best_model, None if knn is None else knn.metric
    if wanted in (None, known):
        return
    if known is None:
        raise UserError(f"--metric_for_best_model: {wanted!r} is not measured; there is no online evaluation (--knn_k)")
    raise UserError(f"--metric_for_best_model: {wanted!r} is not measured; known is {known}")


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


def parse(argv: Sequence[str]) -> PretrainSettings:
    """Settings from the command line.

    Raises:
        UserError: an unknown name or a value out of range.
    """
    groups = (VisionSettings, VisionLossSettings, VisionEngineSettings)
    (vision, loss, engine), preset = parse_settings(
        argv, groups, PRESETS, "cifar10", "train.py", __doc__, own_temperature=("macl", *WITHOUT_TEMPERATURE)
    )
    return PretrainSettings(vision, loss, engine, preset)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def work() -> bool:
        pretrain(parse(sys.argv[1:] if argv is None else argv))
        return True

    return exit_code("train.py", work)


if __name__ == "__main__":
    sys.exit(main())
