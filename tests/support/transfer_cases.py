"""What the tests of transfer tasks share: the small sets of the checkout, the tasks by name, and an encoder."""

import zlib

import torch

from dystress_text.evaluation.catalogue import MINI_TRANSFER_TASKS, TRANSFER_TASKS
from dystress_text.files.places import EMBEDDED

MINI = EMBEDDED / "senteval"
TASKS = {task.name: task for task in (*TRANSFER_TASKS, *MINI_TRANSFER_TASKS)}


def bag_of_words(sentences, dim=48):
    """Hashed words, so that the tasks can be learnt."""
    vectors = torch.zeros(len(sentences), dim)
    for row, sentence in zip(vectors, sentences, strict=True):
        for word in sentence.lower().split():
            row[zlib.crc32(word.encode()) % dim] += 1
    return vectors
