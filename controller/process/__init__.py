"""The daemon as a process: its log, its memory, its disks, and systemd."""
