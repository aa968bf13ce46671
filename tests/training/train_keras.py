"""Real training with Keras on torch: fit with validation, evaluate, predict. train_keras.py BASE"""

from __future__ import annotations

import sys

import keras
import numpy as np

from monitor.capture.keras import CaptureCallback


def in_layer() -> None: ...


class Counting(keras.layers.Dense):
    """Calls a function twice in each forward pass."""

    def call(self, inputs):
        in_layer()
        in_layer()
        return super().call(inputs)


def main(base: str) -> None:
    keras.utils.set_random_seed(0)
    inputs, targets = np.random.rand(40, 4), np.random.rand(40, 1)
    inner = Counting(4, activation="tanh")
    model = keras.Sequential([keras.layers.Input((4,)), inner, keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    callback = CaptureCallback(base, node="0-test", overhead_share=0)
    words = {"batch_size": 8, "verbose": 0, "callbacks": [callback]}
    model.fit(inputs, targets, epochs=2, validation_data=(inputs[:16], targets[:16]), **words)
    model.evaluate(inputs, targets, **words)
    model.predict(inputs[:24], **words)
    callback.capture.close()


main(sys.argv[1])
