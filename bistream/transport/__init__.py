"""Calls between the model processes of one server, over Unix sockets, and the answers to clients."""
