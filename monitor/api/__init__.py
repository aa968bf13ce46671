"""The HTTP API: routes, parameters, answers, and the server on a unix socket and on TCP."""
