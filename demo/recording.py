"""Draw the output of a run as an animated picture: ``make demo | tee run.txt``, ``python -m demo.recording < run.txt``.

Each step appears at its own time, `SPEED` times as fast; what follows the last step appears at once.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

SPEED: Final = 6.0
LINE_PIXELS: Final = 18
WIDTH: Final = 760
STEP: Final = re.compile(r" *([0-9.]+) s  (.*?)(; the folder of this run is .*)?$")
STYLE: Final = (
    "text { font: 13px ui-monospace, monospace; fill: #d6deeb; white-space: pre } "
    "@media not (prefers-reduced-motion) { text { animation: appear 0.2s both } } "
    "@keyframes appear { from { opacity: 0 } }"
)


def picture(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an SVG of the lines that the demo printed; what make prints around them is left out."""
    shown: list[tuple[float, str]] = [(0.0, "$ make demo")]
    for line in lines:
        if (step := STEP.match(line.rstrip())) is not None:
            shown.append((float(step[1]) / SPEED, f"{step[1]:>6} s  {step[2]}"))
        elif len(shown) > 1:
            shown.append((shown[-1][0] + 0.05, line.rstrip()))
    height = (len(shown) + 1) * LINE_PIXELS
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    yield f"<title>A run of the demo, {SPEED:g} times as fast</title><style>{STYLE}</style>"
    yield '<rect width="100%" height="100%" rx="8" fill="#0b1622"/>'
    for number, (seconds, text) in enumerate(shown, 1):
        at = f'x="16" y="{number * LINE_PIXELS + 4}" style="animation-delay: {seconds:.2f}s"'
        yield f"<text {at}>{escape(text)}</text>"
    yield "</svg>"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in picture(sys.stdin))
