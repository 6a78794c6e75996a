"""STS and scored pairs, SentEval's tasks and classifiers, evaluators while training, and tables of
results.

May import: core, cli, files, training, models.
"""
