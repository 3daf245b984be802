"""One state machine for each WebSocket protocol: messages in, actions out. No sockets, no tasks, no framework."""
