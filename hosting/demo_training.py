"""A small training job in JAX on the CPU that profiles a few of its steps: one of the demo's two hosts.

Run as a script. It trains past compilation, prints `ready` and waits for a line on standard input, so that all hosts of
the job record the same time. Then it records some steps with `jax.profiler` below `--out`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

BATCH = 128
WIDTHS = (64, 256, 256, 10)
LEARNING_RATE = 0.05

Layer = tuple[jax.Array, jax.Array]
Batch = tuple[jax.Array, jax.Array]


def new_parameters(key: jax.Array) -> list[Layer]:
    """Weights and biases of a multilayer perceptron."""
    keys = jax.random.split(key, len(WIDTHS) - 1)
    return [
        (jax.random.normal(k, (fan_in, fan_out)) * (2 / fan_in) ** 0.5, jnp.zeros(fan_out))
        for k, fan_in, fan_out in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=True)
    ]


def predict(parameters: list[Layer], inputs: jax.Array) -> jax.Array:
    for weights, bias in parameters[:-1]:
        inputs = jax.nn.relu(inputs @ weights + bias)
    weights, bias = parameters[-1]
    return inputs @ weights + bias


def loss(parameters: list[Layer], batch: Batch) -> jax.Array:
    inputs, labels = batch
    scores = jax.nn.log_softmax(predict(parameters, inputs))
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


@jax.jit
def train_step(parameters: list[Layer], batch: Batch) -> tuple[list[Layer], jax.Array]:
    value, gradients = jax.value_and_grad(loss)(parameters, batch)
    updated = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients)
    return updated, value


@jax.jit
def evaluate(parameters: list[Layer], batch: Batch) -> jax.Array:
    inputs, labels = batch
    return jnp.mean(jnp.argmax(predict(parameters, inputs), axis=1) == labels)


def batches(key: jax.Array) -> Iterator[Batch]:
    """Random inputs, labelled by a fixed linear rule so that there is something to learn."""
    rule = jax.random.normal(jax.random.key(0), (WIDTHS[0], WIDTHS[-1]))
    while True:
        key, current = jax.random.split(key)
        inputs = jax.random.normal(current, (BATCH, WIDTHS[0]))
        yield inputs, jnp.argmax(inputs @ rule, axis=1)


def train(parameters: list[Layer], source: Iterator[Batch], first: int, steps: int) -> list[Layer]:
    """Runs the steps `first` … `first + steps - 1`, each annotated as XProf expects, with an evaluation at the end."""
    for step in range(first, first + steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            with jax.profiler.TraceAnnotation("next_batch"):
                batch = next(source)
            parameters, value = train_step(parameters, batch)
            value.block_until_ready()
    with jax.profiler.TraceAnnotation("evaluation"):
        evaluate(parameters, next(source)).block_until_ready()
    return parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the profile below")
    parser.add_argument("--host-index", type=int, default=0, help="number of this host within the job")
    parser.add_argument("--steps", type=int, default=10, help="number of steps to record")
    arguments = parser.parse_args()

    source = batches(jax.random.key(1 + arguments.host_index))
    warm_up = 3
    parameters = train(new_parameters(jax.random.key(0)), source, first=0, steps=warm_up)
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody waits for this profile any more")

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # interpreter frames would be most of the file
    jax.profiler.start_trace(str(arguments.out), profiler_options=options)
    train(parameters, source, first=warm_up, steps=arguments.steps)
    jax.profiler.stop_trace()


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
