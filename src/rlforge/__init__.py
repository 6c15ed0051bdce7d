"""Reinforcement learning of language models in text games.

``train`` starts a run, ``load_run`` reads one, ``play_game`` plays. The other names are what
extensions are written with: https://github.com/rlforge/rlforge/blob/main/docs/extending.md.
``__init__.pyi`` lists them; all other names are private and may change in any release.
"""

import lazy_loader

# torch and Ray take seconds to import: each name is imported on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
