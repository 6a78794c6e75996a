"""Fine-tuning on text: settings, training text, initial model, task and measurements."""
