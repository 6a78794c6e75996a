"""Fine-tuning on text: the initial model, its samples, the task, and what a run measures."""
