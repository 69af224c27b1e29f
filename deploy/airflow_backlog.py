"""Airflow DAG that counts backlogs every five minutes.

In headgate.toml, below ``[drain]``, put ``results = RESULTS`` in the place of ``socket``. Requires Airflow 3,
with headgate installed where its tasks run. A failed run keeps the last result, and the next run counts all
chunks since then, so no catch-up is needed.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag

LEDGER = "s3://bucket/headgate"
RESULTS = "s3://bucket/headgate"
MASTER = "spark://spark.example:7077"


@dag(
    schedule=timedelta(minutes=5),
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001 - Airflow adds its time zone
    catchup=False,
    max_active_runs=1,
)
def headgate_backlog() -> None:
    """Count backlogs and drained segments."""
    BashOperator(
        task_id="count",
        bash_command=f"headgate drain job --ledger {LEDGER} --out {RESULTS} --master {MASTER}",
        execution_timeout=timedelta(minutes=30),
        retries=2,
    )
    # With spark-submit, the command is "spark-submit --master yarn FILE --ledger … --out …". FILE is what
    # `python -c "import drain.backlog.job as job; print(job.__file__)"` prints. Omit the --master of the job: it uses
    # that of spark-submit.


headgate_backlog()
