"""The Kubernetes operator: profiles nodes, plans their cores, and runs one pod on each.

`model` is what users write and read, `plan` decides (pure), `apply` writes to the API server, and
`handlers` feeds what is watched into the store that plans are made from.
"""
