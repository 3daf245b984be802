"""The rules that decide when a hop is made, in what order and with which others. Pure: no torch, no clock, no queue of its own thread."""
