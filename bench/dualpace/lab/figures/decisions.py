"""Figure 7: where a host batch's dense stages run, by its size, and what that gains."""

from dualpace.lab.figures.page import Book
from dualpace.lab.systems import Hardware
from dualpace.scheduling.cost import GpuWork
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts, Router, offer

_ROWS = [round(2 ** (i / 4)) for i in range(37)]
_CONTEXTS = [64 * 2**i for i in range(8)]


def draw(book: Book, hardware: Hardware) -> None:
    """Draw figure 7: for an idle GPU, one that decodes, and one that also computes a prompt."""
    costs = RouteCosts(hardware.costs())
    gpu = hardware.costs().gpu
    loads = {
        "idle GPU": None,
        "GPU decodes 20 requests": GpuWork(20, 20, 20, 24_000, 0),
        "and 256 prompt tokens": GpuWork(276, 20, 20, 24_000, 256 * 500),
    }
    figure, panels = book.page(len(loads), "Dense stages of a host batch: speed-up by assist")
    rows = []
    for panel, (load, work) in zip(panels, loads.items(), strict=True):
        terms = offer(gpu, work, share=0.35)
        gains = []
        for context in _CONTEXTS:
            line = []
            for batch in _ROWS:
                kv_tokens = batch * context
                local = costs.forecast(Route.HOST, batch, kv_tokens, terms)
                lent = costs.forecast(Route.ASSIST, batch, kv_tokens, terms)
                chosen = Router(costs).choose(batch, kv_tokens, terms)
                line.append(local.host_s / lent.host_s)
                rows.append(
                    {
                        "gpu": load,
                        "rows": batch,
                        "context": context,
                        "route": chosen.route.name.lower(),
                        "cpu_alone_s": local.host_s,
                        "with_assist_s": lent.host_s,
                        "gpu_taken_s": lent.gpu_s,
                    }
                )
                if chosen.route is Route.ASSIST:
                    panel.plot(batch, context, ".", color="black", markersize=3)
            gains.append(line)
        mesh = panel.pcolormesh(_ROWS, _CONTEXTS, gains, shading="nearest", cmap="viridis")
        figure.colorbar(mesh, ax=panel)
        panel.set(title=f"{load} (dots: chosen)", xlabel="rows", ylabel="tokens of context")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
    book.save("figure-07-decisions", figure, rows)
