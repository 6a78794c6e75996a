"""The images of a set in batches, in any order; files are decoded by threads, some batches ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from vision.data.images import ImageSet

AHEAD = 2  # batches


def image_batches(
    images: ImageSet, batch_size: int, device: torch.device | str = "cpu", order: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches as (rows (b,), images (b, 3, h, w) uint8 on the device).

    Args:
        images: n of them.
        batch_size: images a batch, fewer in the last one.
        device: where they go.
        order: rows to take, in order; None takes all as they come.

    Raises:
        DataError: while iterating, if a file is damaged.
    """
    order = torch.arange(len(images)) if order is None else order.cpu()
    if images.images is not None:
        for rows in torch.split(order, batch_size):
            yield rows, images.images[rows.to(images.images.device)].to(device)
        return
    waiting: deque[tuple[Tensor, list[Future[Tensor]]]] = deque()
    with ThreadPoolExecutor() as pool:
        try:
            for rows in torch.split(order, batch_size):
                waiting.append((rows, [pool.submit(images.image, row) for row in rows.tolist()]))
                if len(waiting) > AHEAD:
                    yield _decoded(*waiting.popleft(), device)
            while waiting:
                yield _decoded(*waiting.popleft(), device)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # whoever stops early does not wait for the rest


def _decoded(rows: Tensor, futures: list[Future[Tensor]], device: torch.device | str) -> tuple[Tensor, Tensor]:
    return rows, torch.stack([future.result() for future in futures]).to(device)
