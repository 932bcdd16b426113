"""What processes do that are going to be killed, or that get in each other's way."""

from __future__ import annotations

import importlib
import os
import signal
import warnings

import numpy as np

import daskmm
from daskmm.cli.main import main


def fit_and_die(name, parameters, data, checkpoint, after):
    """Fit a model with a checkpoint, and kill this process after so many iterations.

    A fit that ends before that is saved beside its checkpoint.
    """
    heard = []

    def die(record):
        heard.append(record)
        if len(heard) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    warnings.simplefilter("ignore")
    model = getattr(daskmm, name)(**parameters, checkpoint=checkpoint, callbacks=[die])
    model.fit(np.load(data)).save(f"{checkpoint}-model")


def update_and_die(folder, module, name, call):
    """Update a model by the command, and end this process at a call of some function."""
    owner = importlib.import_module(module)
    *owners, name = name.split(".")
    for each in owners:
        owner = getattr(owner, each)
    real, left = getattr(owner, name), [call]

    def killed(*arguments, **more):
        left[0] -= 1
        if not left[0]:
            os._exit(137)  # nothing is cleaned up, as after a kill
        return real(*arguments, **more)

    setattr(owner, name, killed)
    main(["update", f"{folder}/run", f"{folder}/monday.csv", "--quiet"])


def replace_often(folder, name, count):
    """Replace a model again and again by one of two others, and say when that is done."""
    models = [daskmm.load(folder / each) for each in ("one", "two")]
    try:
        for i in range(count):
            models[i % 2].save(folder / "model", overwrite=True)
    finally:
        (folder / f"done-{name}").touch()


def load_often(folder, savers):
    """Load a model until all processes that replace it are done, and say how often."""
    count = 0
    while len(list(folder.glob("done-*"))) < savers:
        daskmm.load(folder / "model")
        count += 1
    (folder / f"loads-{os.getpid()}").write_text(str(count))
