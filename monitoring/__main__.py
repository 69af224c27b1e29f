"""`python -m monitoring` writes the dashboard to deploy/grafana."""

from pathlib import Path

from monitoring.dashboard import dashboard_json

PATH = Path(__file__).parents[1] / "deploy" / "grafana" / "headgate.json"

if __name__ == "__main__":
    PATH.write_text(dashboard_json())
