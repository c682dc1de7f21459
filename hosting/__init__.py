"""The service: gateway (HTTP), planner and router, shards, pages, and the command line.

`serve` starts it on one machine; `application.build` makes the Ray Serve application that it, or a cluster, runs.
"""
