"""A whole cluster: failures, attackers, the cost of security, and the simulator."""
