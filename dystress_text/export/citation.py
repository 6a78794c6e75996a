"""How to cite the paper."""

CITATION = """\
@misc{manna2023dynamically,
  title         = {Dynamically Scaled Temperature in Self-Supervised Contrastive Learning},
  author        = {Siladittya Manna and Soumitri Chattopadhyay and Rakesh Dey and Saumik Bhattacharya and Umapada Pal},
  year          = {2023},
  eprint        = {2308.01140},
  archivePrefix = {arXiv}
}"""
