"""The README of a chart, from the comments in its values. `make crds` writes it."""

import sys
from pathlib import Path
from typing import Any

import yaml


def text_of(chart: Path) -> str:
    """Return the README: the chart's description, how to install it, and every value."""
    meta = yaml.safe_load((chart / "Chart.yaml").read_text())
    lines = (chart / "values.yaml").read_text().splitlines()
    values = yaml.safe_load("\n".join(lines))
    rows: list[str] = []
    path: list[str] = []
    comment = ""
    for line in lines:
        text = line.strip()
        if text.startswith("# --"):
            comment = text.removeprefix("# --").strip()
        elif text.startswith("#") and comment:
            comment += " " + text.removeprefix("#").strip()
        elif ":" in text and not text.startswith(("#", "-")):
            depth = (len(line) - len(line.lstrip())) // 2
            path = [*path[:depth], text.split(":")[0]]
            if comment:
                rows.append(f"| `{'.'.join(path)}` | {_default(values, path)} | {comment} |")
            comment = ""
    return (
        f"# {meta['name']}\n\n{meta['description']}\n\n"
        "Install the chart `dualpace-crds` first; docs/operations.md tells the whole story.\n\n"
        "    helm install dualpace-crds helm/dualpace-crds\n"
        "    helm install dualpace helm/dualpace --namespace dualpace-system --create-namespace\n\n"
        "The table is generated from values.yaml.\n\n"
        "| value | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _default(values: Any, path: list[str]) -> str:
    for key in path:
        values = values[key]
    if isinstance(values, dict) and values:
        return "see values.yaml"
    return f"`{yaml.safe_dump(values, default_flow_style=True).replace('...', '').strip()}`"


if __name__ == "__main__":
    chart = Path(sys.argv[1])
    (chart / "README.md").write_text(text_of(chart))
