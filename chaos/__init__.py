"""A cluster of real processes under faults, and a judgement of what its clients saw: `python -m chaos`.

A schedule (chaos.schedule) begins and ends faults (chaos.faults) on a cluster (chaos.cluster), while producers and
consumers run. The judge (chaos.judge) gets what they wrote and the ledger, and nothing that a daemon reports.
"""
