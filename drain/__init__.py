"""The Spark pipeline that counts backlogs, and the checker that asks it."""
