"""What a network costs on an accelerator: an analytic model of three dataflows. Pure functions, no framework.

Units: latency in cycles; energy in that of one multiply-accumulate; area in that of one processing element. A value read
from or written to the global buffer costs 6 multiply-accumulates, one of DRAM 200 (Chen et al. 2016, "Eyeriss", normalised by
the register file, which an operation uses once). Parallelism and reuse of the templates follow Yang et al. 2020 (NASAIC, arXiv
2002.04116): NVDLA keeps weights in place and works on channels side by side, ShiDianNao keeps outputs and works on pixels,
row-stationary (Eyeriss) keeps rows and works on rows of filters and outputs. It orders designs; it is no measured chip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BUFFER_ENERGY, DRAM_ENERGY = 6.0, 200.0
BANDWIDTH_AREA = 4.0
"""Processing elements as large as one value per cycle of bandwidth: wires and a port of the buffer."""
DATAFLOWS = ("dla", "shi", "rs")


@dataclass(frozen=True)
class Layer:
    """A convolution of ``inputs`` to ``outputs`` channels with a square kernel, over ``size`` x ``size`` outputs."""

    inputs: int
    outputs: int
    kernel: int
    size: int

    @property
    def operations(self) -> int:
        """Multiply-accumulates."""
        return self.inputs * self.outputs * self.kernel**2 * self.size**2


@dataclass(frozen=True)
class Accelerator:
    """A sub-accelerator: its dataflow, processing elements, and values a cycle from the buffer."""

    dataflow: str
    elements: int
    bandwidth: int

    @property
    def area(self) -> float:
        return self.elements + BANDWIDTH_AREA * self.bandwidth


@dataclass(frozen=True)
class Cost:
    latency: float
    energy: float
    area: float

    def over(self, limits: Cost) -> float:
        """The sum of what is above each limit, as a share of the limit; 0 where all are met."""
        pairs = (self.latency, limits.latency), (self.energy, limits.energy), (self.area, limits.area)
        return sum(max(0.0, value / limit - 1) for value, limit in pairs)


def cycles_and_traffic(layer: Layer, accelerator: Accelerator) -> tuple[int, float]:
    """Cycles of computing with all data at hand, and values that the buffer gives or takes."""
    channels, elements = layer.inputs * layer.outputs, accelerator.elements
    weights, pixels = channels * layer.kernel**2, layer.size**2
    shown = layer.inputs * (layer.size + layer.kernel - 1) ** 2
    made = layer.outputs * pixels
    if accelerator.dataflow == "dla":  # channels side by side, weights stay: inputs come again for each part of the channels
        parts = math.ceil(channels / elements)
        return parts * layer.kernel**2 * pixels, weights + shown * min(parts, layer.outputs) + made * min(parts, layer.inputs)
    if accelerator.dataflow == "shi":  # pixels side by side, sums stay: weights come again for each part of the pixels
        parts = math.ceil(pixels / elements)
        return parts * weights, weights * parts + shown * layer.outputs / layer.kernel + made
    # Rows of the filter times rows of the output side by side; the rest of the elements holds other channels' rows.
    rows = layer.kernel * layer.size
    parts = math.ceil(channels * rows / elements) if elements >= rows else channels * math.ceil(rows / elements)
    again = min(layer.outputs, max(1.0, layer.outputs * rows / elements))
    return parts * layer.kernel * layer.size, weights + shown * again + made


def layer_cost(layer: Layer, accelerator: Accelerator) -> tuple[float, float]:
    """Latency and energy: computing and moving overlap, so the slower one counts."""
    cycles, traffic = cycles_and_traffic(layer, accelerator)
    stored = layer.inputs * (layer.size + layer.kernel - 1) ** 2 + layer.inputs * layer.outputs * layer.kernel**2
    stored += layer.outputs * layer.size**2
    energy = layer.operations + BUFFER_ENERGY * traffic + DRAM_ENERGY * stored
    return max(float(cycles), traffic / accelerator.bandwidth), energy


def design_cost(networks: Sequence[Sequence[Layer]], accelerators: Sequence[Accelerator]) -> Cost:
    """The cheapest way to give each network one of the accelerators: least latency, then least energy.

    Networks on one accelerator follow one another, accelerators run side by side.
    """
    best = (math.inf, math.inf)
    for number in range(len(accelerators) ** len(networks)):
        busy, energy = [0.0] * len(accelerators), 0.0
        for network in networks:
            number, place = divmod(number, len(accelerators))
            for layer in network:
                latency, used = layer_cost(layer, accelerators[place])
                busy[place] += latency
                energy += used
        best = min(best, (max(busy), energy))
    return Cost(*best, sum(accelerator.area for accelerator in accelerators))
