"""Calls between the model processes of one server: Unix sockets under a keeper, BLS requests under a plain ``tritonserver``."""
