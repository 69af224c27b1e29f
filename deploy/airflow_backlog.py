"""Airflow runs the job that counts the backlog, every five minutes. In headgate.toml: ``[drain] results = RESULTS``.

Airflow 3, with headgate installed where its tasks run. A run that fails leaves the last result, and the next
one counts what both would have: nothing needs to be caught up on.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag

LEDGER = "s3://bucket/headgate"
RESULTS = "s3://bucket/headgate"
MASTER = "spark://spark.example:7077"


@dag(
    schedule=timedelta(minutes=5),
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001 - Airflow adds its own time zone
    catchup=False,
    max_active_runs=1,
)
def headgate_backlog() -> None:
    """Count what is drained."""
    BashOperator(
        task_id="count",
        bash_command=f"python -P -m drain.backlog.job --ledger {LEDGER} --out {RESULTS} --master {MASTER}",
        execution_timeout=timedelta(minutes=30),
        retries=2,
    )
    # Where jobs are submitted: "spark-submit --master yarn /opt/headgate/drain/job.py --ledger … --out …" without
    # --master behind it; the job then takes the one that spark-submit was given.


headgate_backlog()
