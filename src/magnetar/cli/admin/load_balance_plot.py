"""The picture of `magnetar loadbalance simulate`: how uneven brokers are and how much moved, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from magnetar.broker.load_balance.simulation import LOAD_MANAGER, MODULO, RANDOM, RING, Sample
from magnetar.cli.hashing.plots import pyplot, save

COLOURS = {LOAD_MANAGER: "tab:blue", RANDOM: "tab:gray", MODULO: "tab:orange", RING: "tab:green"}


def plot_samples(path: Path, samples: Mapping[str, Sequence[Sample]], title: str) -> None:
    """Three panels over time. MissingExtraError without matplotlib."""
    plt = pyplot()
    figure, panels = plt.subplots(3, 1, figsize=(9, 9.5), sharex=True, layout="constrained")
    drawn: tuple[tuple[str, Callable[[Sequence[Sample]], list[float]]], ...] = (
        ("most loaded broker over the mean", lambda each: [sample.peak for sample in each]),
        ("brokers above 85 % of capacity, %", lambda each: [100 * sample.overloaded for sample in each]),
        ("bundles moved so far, % (log)", lambda each: list(accumulate(100 * sample.moved for sample in each))),
    )
    for axes, (label, values) in zip(panels, drawn, strict=True):
        for name, each in samples.items():
            steps = [sample.step for sample in each]
            axes.plot(
                steps, values(each), label=name, color=COLOURS[name], linewidth=2 if name == LOAD_MANAGER else 1.3
            )
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        for sample in next(iter(samples.values())):
            if sample.event:
                axes.axvline(sample.step, color="black", linewidth=0.7, linestyle=":")
    for sample in next(iter(samples.values())):
        if sample.event:
            panels[0].annotate(
                sample.event,
                (sample.step, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -10),
                textcoords="offset points",
                fontsize=8,
            )
    panels[0].set_ylim(bottom=1)
    panels[2].set_ylim(bottom=0)
    panels[2].set_yscale("symlog", linthresh=0.1)
    panels[2].set_xlabel("step (one decision interval)")
    figure.suptitle(title)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    save(plt, figure, path)
